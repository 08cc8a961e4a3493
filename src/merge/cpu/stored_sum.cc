#include <algorithm>
#include <array>

#include "base/check.h"
#include "base/float16.h"
#include "codec/row_ops.h"
#include "merge/cpu/element_ops.h"
#include "merge/ref/element_ops.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "merge/cpu/stored_sum.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "codec/cpu/load-inl.h"
#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace df::merge::element_ops::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
namespace load = row_ops::cpu::HWY_NAMESPACE;

using load::F32;
using F64 = hn::ScalableTag<double>;
using F64Vec = hn::Vec<F64>;
using HalfF32 = hn::Rebind<float, F64>;  // as many as f64 lanes
constexpr size_t kF64 = HWY_LANES(double);
constexpr size_t kSumLanes = row_ops::kSumLanes;
constexpr size_t kParts = kSumLanes / kF64;        // registers of a sum
constexpr size_t kLoads = kSumLanes / load::kF32;  // registers of as many elements as f32: two parts each

// How far ahead of the sums each model's lines are asked for. The cores' own prefetchers stop at the end of a page, and
// there are k + 1 streams.
constexpr size_t kAheadBytes = 1024;

HWY_INLINE F64Vec Low(load::F32Vec x) { return hn::PromoteTo(F64(), hn::LowerHalf(HalfF32(), x)); }
HWY_INLINE F64Vec High(load::F32Vec x) { return hn::PromoteTo(F64(), hn::UpperHalf(HalfF32(), x)); }

struct Lanes {
  HWY_INLINE Lanes() {
    DF_UNROLL
    for (size_t p = 0; p < kParts; ++p) sums[p] = hn::Zero(F64());
  }
  HWY_INLINE void AddSquare(size_t p, F64Vec x) { sums[p] = hn::Add(sums[p], hn::Mul(x, x)); }
  F64Vec sums[kParts];
};

// With what `rest` (below kSumLanes values) adds, folded as in ref/.
HWY_INLINE double Fold(const Lanes& lanes, const double* rest, size_t n_rest) {
  double values[kSumLanes];
  DF_UNROLL
  for (size_t p = 0; p < kParts; ++p) hn::StoreU(lanes.sums[p], F64(), values + p * kF64);
  for (size_t k = 0; k < n_rest; ++k) values[k] += rest[k];
  for (size_t half = kSumLanes / 2; half > 0; half /= 2) {
    for (size_t k = 0; k < half; ++k) values[k] += values[k + half];
  }
  return values[0];
}

template <typename T, size_t kModels, bool kHasBase>
HWY_INLINE double SumOf(const StoredRuns& runs, std::span<const double> coefficients, std::span<double> squares,
                        std::span<float> out) {
  Lanes of_model[kModels], of_result;
  size_t j = 0;
  for (; j + kSumLanes <= out.size(); j += kSumLanes) {
    const size_t at = j * sizeof(T);
    DF_UNROLL
    for (size_t i = 0; i < kModels; ++i) __builtin_prefetch(runs.models[i] + at + kAheadBytes, 0, 3);
    if constexpr (kHasBase) __builtin_prefetch(runs.base + at + kAheadBytes, 0, 3);
    DF_UNROLL
    for (size_t l = 0; l < kLoads; ++l) {
      const size_t from = at + l * load::kF32 * sizeof(T);
      auto base = hn::Zero(F32());
      if constexpr (kHasBase) base = load::LoadFloats<T>(runs.base + from);
      auto low = hn::Zero(F64()), high = hn::Zero(F64());
      DF_UNROLL
      for (size_t i = 0; i < kModels; ++i) {
        auto d = load::LoadFloats<T>(runs.models[i] + from);
        if constexpr (kHasBase) d = hn::Sub(d, base);
        const auto factor = hn::Set(F64(), coefficients[i]);
        const auto d_low = Low(d), d_high = High(d);
        of_model[i].AddSquare(2 * l, d_low);
        of_model[i].AddSquare(2 * l + 1, d_high);
        low = hn::Add(low, hn::Mul(factor, d_low));
        high = hn::Add(high, hn::Mul(factor, d_high));
      }
      const auto from_low = Low(base), from_high = High(base);
      const auto narrow_low = hn::DemoteTo(HalfF32(), hn::Add(from_low, low));
      const auto narrow_high = hn::DemoteTo(HalfF32(), hn::Add(from_high, high));
      hn::StoreU(narrow_low, HalfF32(), out.data() + j + l * load::kF32);
      hn::StoreU(narrow_high, HalfF32(), out.data() + j + l * load::kF32 + kF64);
      of_result.AddSquare(2 * l, hn::Sub(hn::PromoteTo(F64(), narrow_low), from_low));
      of_result.AddSquare(2 * l + 1, hn::Sub(hn::PromoteTo(F64(), narrow_high), from_high));
    }
  }
  // The last elements, fewer than kSumLanes: each is in a lane of its own.
  double rest[kModels + 1][kSumLanes] = {};
  for (size_t k = 0; j + k < out.size(); ++k) {
    const auto read = [&](const uint8_t* stored) { return ToFloat(LoadUnaligned<T>(stored + (j + k) * sizeof(T))); };
    const float base = kHasBase ? read(runs.base) : 0.0F;
    double sum = 0;
    for (size_t i = 0; i < kModels; ++i) {
      const float d = kHasBase ? read(runs.models[i]) - base : read(runs.models[i]);
      rest[i][k] = double{d} * double{d};
      sum += coefficients[i] * double{d};
    }
    out[j + k] = static_cast<float>(double{base} + sum);
    const double changed = double{out[j + k]} - double{base};
    rest[kModels][k] = changed * changed;
  }
  const size_t n_rest = out.size() - j;
  for (size_t i = 0; i < kModels; ++i) squares[i] += Fold(of_model[i], rest[i], n_rest);
  return Fold(of_result, rest[kModels], n_rest);
}

template <typename T, bool kHasBase>
double SumFrom(const StoredRuns& runs, std::span<const double> coefficients, std::span<double> squares,
               std::span<float> out) {
  switch (runs.models.size()) {
    case 1: return SumOf<T, 1, kHasBase>(runs, coefficients, squares, out);
    case 2: return SumOf<T, 2, kHasBase>(runs, coefficients, squares, out);
    case 3: return SumOf<T, 3, kHasBase>(runs, coefficients, squares, out);
    case 4: return SumOf<T, 4, kHasBase>(runs, coefficients, squares, out);
    default: DF_CHECK(false);
  }
}

template <typename T>
double SumAs(const StoredRuns& runs, std::span<const double> coefficients, std::span<double> squares,
             std::span<float> out) {
  return (runs.base == nullptr ? SumFrom<T, false> : SumFrom<T, true>)(runs, coefficients, squares, out);
}

double StoredSumImpl(const StoredRuns& runs, std::span<const double> coefficients, std::span<double> squares,
                     std::span<float> out) {
  switch (runs.dtype) {
    case DType::kBf16: return SumAs<Bf16>(runs, coefficients, squares, out);
    case DType::kF16: return SumAs<F16>(runs, coefficients, squares, out);
    case DType::kF32: return SumAs<float>(runs, coefficients, squares, out);
    default: DF_CHECK(false);
  }
}

}  // namespace df::merge::element_ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace df::merge::element_ops::cpu {
namespace {

HWY_EXPORT(StoredSumImpl);

}  // namespace

double StoredSum(const StoredRuns& runs, std::span<const double> coefficients, std::span<double> squares,
                 std::span<float> out) {
  return HWY_DYNAMIC_DISPATCH(StoredSumImpl)(runs, coefficients, squares, out);
}

}  // namespace df::merge::element_ops::cpu
#endif  // HWY_ONCE
