#include "merge/cpu/element_ops.h"

#include "codec/row_ops.h"
#include "merge/ref/element_ops.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "merge/cpu/element_ops.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace df::merge::element_ops::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using I32 = hn::RebindToSigned<F32>;
using U32 = hn::RebindToUnsigned<F32>;
using F64 = hn::ScalableTag<double>;
using F64Vec = hn::Vec<F64>;
using HalfF32 = hn::Rebind<float, F64>;  // as many as f64 lanes
constexpr size_t kF32 = HWY_LANES(float);
constexpr size_t kF64 = HWY_LANES(double);
constexpr size_t kSumLanes = row_ops::kSumLanes;
constexpr size_t kParts = kSumLanes / kF64;  // registers of a sum

HWY_INLINE F64Vec Widened(const float* from) { return hn::PromoteTo(F64(), hn::LoadU(HalfF32(), from)); }

// kSumLanes partial sums of squares.
struct SquareLanes {
  HWY_INLINE SquareLanes() {
    DF_UNROLL
    for (size_t p = 0; p < kParts; ++p) sums[p] = hn::Zero(F64());
  }
  HWY_INLINE void Add(size_t p, F64Vec value) { sums[p] = hn::Add(sums[p], hn::Mul(value, value)); }
  HWY_INLINE void Store(double* lanes) const {
    DF_UNROLL
    for (size_t p = 0; p < kParts; ++p) hn::StoreU(sums[p], F64(), lanes + p * kF64);
  }
  F64Vec sums[kParts];
};

HWY_INLINE double Fold(double* lanes) {
  for (size_t half = kSumLanes / 2; half > 0; half /= 2) {
    for (size_t k = 0; k < half; ++k) lanes[k] += lanes[k + half];
  }
  return lanes[0];
}

double SquaresImpl(std::span<const float> values) {
  SquareLanes squares;
  size_t j = 0;
  for (; j + kSumLanes <= values.size(); j += kSumLanes) {
    DF_UNROLL
    for (size_t p = 0; p < kParts; ++p) squares.Add(p, Widened(values.data() + j + p * kF64));
  }
  double lanes[kSumLanes];
  squares.Store(lanes);
  for (size_t k = 0; j + k < values.size(); ++k) lanes[k] += double{values[j + k]} * double{values[j + k]};
  return Fold(lanes);
}

void KeepAtLeastImpl(uint32_t least, std::span<float> values) {
  // Both sides are below 2^31: compared as signed.
  const auto bound = hn::Set(I32(), static_cast<int32_t>(least));
  const auto magnitude_bits = hn::Set(I32(), INT32_MAX);
  size_t j = 0;
  for (; j + kF32 <= values.size(); j += kF32) {
    const auto bits = hn::BitCast(I32(), hn::LoadU(F32(), values.data() + j));
    const auto is_less = hn::VecFromMask(I32(), hn::Gt(bound, hn::And(bits, magnitude_bits)));
    hn::StoreU(hn::BitCast(F32(), hn::AndNot(is_less, bits)), F32(), values.data() + j);
  }
  ref::KeepAtLeast(least, values.subspan(j));
}

HWY_INLINE hn::Vec<U32> Finalised(hn::Vec<U32> x) {
  x = hn::Mul(hn::Xor(x, hn::ShiftRight<16>(x)), hn::Set(U32(), 0x85EBCA6Bu));
  x = hn::Mul(hn::Xor(x, hn::ShiftRight<13>(x)), hn::Set(U32(), 0xC2B2AE35u));
  return hn::Xor(x, hn::ShiftRight<16>(x));
}

void DropImpl(uint64_t key, uint64_t first, uint32_t below, std::span<float> values) {
  // Unsigned numbers with their upper bit turned have the order of signed ones.
  const auto turn = hn::Set(U32(), 0x80000000u);
  const auto bound = hn::BitCast(I32(), hn::Xor(hn::Set(U32(), below), turn));
  const auto before = hn::Set(U32(), static_cast<uint32_t>(key));
  const auto between = hn::Set(U32(), static_cast<uint32_t>(key >> 32));
  size_t j = 0;
  for (; j + kF32 <= values.size(); j += kF32) {
    const auto counter = hn::Iota(U32(), static_cast<uint32_t>(first + j));
    const auto draw = Finalised(hn::Add(Finalised(hn::Xor(counter, before)), between));
    const auto keeps = hn::VecFromMask(I32(), hn::Gt(bound, hn::BitCast(I32(), hn::Xor(draw, turn))));
    const auto bits = hn::BitCast(I32(), hn::LoadU(F32(), values.data() + j));
    hn::StoreU(hn::BitCast(F32(), hn::And(keeps, bits)), F32(), values.data() + j);
  }
  ref::Drop(key, first + j, below, values.subspan(j));
}

// kSumLanes elements of a result: out = f32(from + change), `from` the base's from `at` on.
HWY_INLINE void WriteChanged(const Runs& runs, size_t at, const F64Vec* change, float* out, SquareLanes& squares) {
  DF_UNROLL
  for (size_t p = 0; p < kParts; ++p) {
    const auto from = runs.base == nullptr ? hn::Zero(F64()) : Widened(runs.base + at + p * kF64);
    const auto narrow = hn::DemoteTo(HalfF32(), hn::Add(from, change[p]));
    hn::StoreU(narrow, HalfF32(), out + p * kF64);
    squares.Add(p, hn::Sub(hn::PromoteTo(F64(), narrow), from));
  }
}

// sums = sum_i coefficients_i d_i of kSumLanes elements from `at` on.
HWY_INLINE void Total(const Runs& runs, std::span<const double> coefficients, size_t at, F64Vec* sums) {
  DF_UNROLL
  for (size_t p = 0; p < kParts; ++p) sums[p] = hn::Zero(F64());
  for (size_t i = 0; i < coefficients.size(); ++i) {
    const auto factor = hn::Set(F64(), coefficients[i]);
    const float* const run = runs.differences[i] + at;
    DF_UNROLL
    for (size_t p = 0; p < kParts; ++p) sums[p] = hn::Add(sums[p], hn::Mul(factor, Widened(run + p * kF64)));
  }
}

// All lanes, when the last elements, fewer than kSumLanes from j on, are written too.
HWY_INLINE double Finish(const SquareLanes& squares, const Runs& runs, size_t j, std::span<const float> out) {
  double lanes[kSumLanes];
  squares.Store(lanes);
  for (size_t k = 0; j + k < out.size(); ++k) {
    const double from = runs.base == nullptr ? 0.0 : double{runs.base[runs.first + j + k]};
    const double difference = double{out[j + k]} - from;
    lanes[k] += difference * difference;
  }
  return Fold(lanes);
}

HWY_INLINE Runs From(const Runs& runs, size_t j) { return {runs.differences, runs.base, runs.first + j}; }

double WeightedSumImpl(const Runs& runs, std::span<const double> coefficients, std::span<float> out) {
  SquareLanes squares;
  size_t j = 0;
  for (; j + kSumLanes <= out.size(); j += kSumLanes) {
    F64Vec sums[kParts];
    Total(runs, coefficients, runs.first + j, sums);
    WriteChanged(runs, runs.first + j, sums, out.data() + j, squares);
  }
  ref::WeightedSum(From(runs, j), coefficients, out.subspan(j));
  return Finish(squares, runs, j, out);
}

// What agrees with the sign of `total`, by its divisor where there is one, times lambda.
HWY_INLINE F64Vec Agreeing(const Runs& runs, const Consensus& consensus, size_t at, F64Vec total) {
  const auto zero = hn::Zero(F64());
  const auto is_plus = hn::Ge(total, zero);
  auto sum = zero, divisor = zero;
  for (size_t i = 0; i < consensus.coefficients.size(); ++i) {
    const auto x = hn::Mul(hn::Set(F64(), consensus.coefficients[i]), Widened(runs.differences[i] + at));
    const auto agrees = hn::Or(hn::And(is_plus, hn::Gt(x, zero)), hn::AndNot(is_plus, hn::Lt(x, zero)));
    sum = hn::Add(sum, hn::IfThenElseZero(agrees, x));
    if (consensus.divisors.empty()) continue;
    divisor = hn::Add(divisor, hn::IfThenElseZero(agrees, hn::Set(F64(), consensus.divisors[i])));
  }
  const auto safe = hn::IfThenElse(hn::Eq(divisor, zero), hn::Set(F64(), 1.0), divisor);
  return hn::Mul(hn::Set(F64(), consensus.lambda), hn::Div(sum, safe));
}

double AgreeingSumImpl(const Runs& runs, const Consensus& consensus, std::span<float> out) {
  SquareLanes squares;
  size_t j = 0;
  for (; j + kSumLanes <= out.size(); j += kSumLanes) {
    const size_t at = runs.first + j;
    F64Vec sums[kParts];
    Total(runs, consensus.coefficients, at, sums);
    DF_UNROLL
    for (size_t p = 0; p < kParts; ++p) sums[p] = Agreeing(runs, consensus, at + p * kF64, sums[p]);
    WriteChanged(runs, at, sums, out.data() + j, squares);
  }
  ref::AgreeingSum(From(runs, j), consensus, out.subspan(j));
  return Finish(squares, runs, j, out);
}

}  // namespace df::merge::element_ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace df::merge::element_ops::cpu {
namespace {

HWY_EXPORT(SquaresImpl);
HWY_EXPORT(KeepAtLeastImpl);
HWY_EXPORT(DropImpl);
HWY_EXPORT(WeightedSumImpl);
HWY_EXPORT(AgreeingSumImpl);

}  // namespace

double Squares(std::span<const float> values) { return HWY_DYNAMIC_DISPATCH(SquaresImpl)(values); }

void KeepAtLeast(uint32_t least, std::span<float> values) { HWY_DYNAMIC_DISPATCH(KeepAtLeastImpl)(least, values); }

void Drop(uint64_t key, uint64_t first, uint32_t below, std::span<float> values) {
  HWY_DYNAMIC_DISPATCH(DropImpl)(key, first, below, values);
}

double WeightedSum(const Runs& runs, std::span<const double> coefficients, std::span<float> out) {
  return HWY_DYNAMIC_DISPATCH(WeightedSumImpl)(runs, coefficients, out);
}

double AgreeingSum(const Runs& runs, const Consensus& consensus, std::span<float> out) {
  return HWY_DYNAMIC_DISPATCH(AgreeingSumImpl)(runs, consensus, out);
}

}  // namespace df::merge::element_ops::cpu
#endif  // HWY_ONCE
