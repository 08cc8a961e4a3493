#include "codec/cpu/row_ops.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/float16.h"
#include "codec/ref/row_ops.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/cpu/row_ops.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "codec/cpu/load-inl.h"
#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace df::row_ops::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// ---- f32 to stored elements, exactly as base/float16.h.

HWY_INLINE hn::Vec<I32> RoundAway(hn::Vec<I32> magnitude, hn::Vec<I32> below_half, hn::Vec<I32> is_odd) {
  return hn::Add(magnitude, hn::Add(below_half, is_odd));
}

// Bits of the narrow type in the lower half of each lane; `magnitude` are those of |x|.
HWY_INLINE hn::Vec<I32> NarrowMagnitude(Bf16, hn::Vec<I32> magnitude) {
  const auto one = hn::Set(I32(), 1);
  const auto odd = hn::And(hn::ShiftRight<16>(magnitude), one);
  const auto rounded = hn::ShiftRight<16>(RoundAway(magnitude, hn::Set(I32(), 0x7FFF), odd));
  const auto quiet = hn::Or(hn::ShiftRight<16>(magnitude), hn::Set(I32(), 0x40));
  return hn::IfThenElse(hn::Gt(magnitude, hn::Set(I32(), 0x7F800000)), quiet, rounded);
}
HWY_INLINE hn::Vec<I32> NarrowMagnitude(F16, hn::Vec<I32> magnitude) {
  const auto one = hn::Set(I32(), 1);
  const auto odd = hn::And(hn::ShiftRight<13>(magnitude), one);
  const auto rebased = hn::Sub(RoundAway(magnitude, hn::Set(I32(), 0xFFF), odd), hn::Set(I32(), 0x38000000));
  const auto normal = hn::ShiftRight<13>(rebased);
  // Below 2^-14 in units of 2^-24, which is what the last bit of a float from 0.5 to 1 is worth.
  const auto half = hn::Set(F32(), 0.5F);
  const auto subnormal =
      hn::Sub(hn::BitCast(I32(), hn::Add(hn::BitCast(F32(), magnitude), half)), hn::BitCast(I32(), half));
  auto bits = hn::IfThenElse(hn::Lt(magnitude, hn::Set(I32(), 0x38800000)), subnormal, normal);
  bits = hn::IfThenElse(hn::Gt(magnitude, hn::Set(I32(), 0x477FFFFF)), hn::Set(I32(), 0x7C00), bits);
  return hn::IfThenElse(hn::Gt(magnitude, hn::Set(I32(), 0x7F800000)), hn::Set(I32(), 0x7E00), bits);
}

template <typename T, int kInfinity>
HWY_INLINE bool NarrowTo(std::span<const float> from, DType dtype, uint8_t* to) {
  const auto max_magnitude = hn::Set(I32(), INT32_MAX);
  auto overflows = hn::Zero(I32());
  size_t j = 0;
  for (; j + kF32 <= from.size(); j += kF32) {
    const auto x = hn::BitCast(I32(), hn::LoadU(F32(), from.data() + j));
    const auto magnitude = hn::And(x, max_magnitude);
    const auto narrow = NarrowMagnitude(T(), magnitude);
    const auto became =
        hn::And(hn::Eq(narrow, hn::Set(I32(), kInfinity)), hn::Lt(magnitude, hn::Set(I32(), 0x7F800000)));
    overflows = hn::Or(overflows, hn::VecFromMask(I32(), became));
    const auto sign = hn::And(hn::ShiftRight<16>(x), hn::Set(I32(), 0x8000));
    const auto bits = hn::DemoteTo(U16(), hn::Or(narrow, sign));
    hn::StoreU(hn::BitCast(hn::Repartition<uint8_t, U16>(), bits), hn::Repartition<uint8_t, U16>(), to + j * sizeof(T));
  }
  const bool rest_fits = ref::Narrow(from.subspan(j), dtype, to + j * sizeof(T));
  return rest_fits && hn::AllTrue(I32(), hn::Eq(overflows, hn::Zero(I32())));
}

bool NarrowImpl(std::span<const float> from, DType dtype, uint8_t* to) {
  switch (dtype) {
    case DType::kBf16: return NarrowTo<Bf16, 0x7F80>(from, dtype, to);
    case DType::kF16: return NarrowTo<F16, 0x7C00>(from, dtype, to);
    default: return ref::Narrow(from, dtype, to);
  }
}

template <typename T>
HWY_INLINE void ReadAs(const uint8_t* from, std::span<float> out) {
  size_t j = 0;
  for (; j + kF32 <= out.size(); j += kF32) {
    hn::StoreU(LoadFloats<T>(from + j * sizeof(T)), F32(), out.data() + j);
  }
  for (; j < out.size(); ++j) out[j] = ToFloat(LoadUnaligned<T>(from + j * sizeof(T)));
}

void ReadImpl(DType dtype, const uint8_t* from, std::span<float> out) {
  switch (dtype) {
    case DType::kBf16: return ReadAs<Bf16>(from, out);
    case DType::kF16: return ReadAs<F16>(from, out);
    case DType::kF32: return ReadAs<float>(from, out);
    default: DF_CHECK(false);
  }
}

template <typename FineTune, typename Base>
HWY_INLINE void DifferenceOf(const uint8_t* fine_tune, const uint8_t* base, std::span<float> out) {
  const auto zero = hn::Zero(F32());
  size_t j = 0;
  for (; j + kF32 <= out.size(); j += kF32) {
    const auto w = LoadFloats<FineTune>(fine_tune + j * sizeof(FineTune));
    const auto w0 = LoadFloats<Base>(base + j * sizeof(Base));
    hn::StoreU(hn::Add(hn::Sub(w, w0), zero), F32(), out.data() + j);
  }
  for (; j < out.size(); ++j) {
    const float w = ToFloat(LoadUnaligned<FineTune>(fine_tune + j * sizeof(FineTune)));
    out[j] = (w - ToFloat(LoadUnaligned<Base>(base + j * sizeof(Base)))) + 0.0F;
  }
}

template <typename FineTune>
HWY_INLINE void DifferenceFrom(const uint8_t* fine_tune, const uint8_t* base, DType base_dtype, std::span<float> out) {
  switch (base_dtype) {
    case DType::kBf16: return DifferenceOf<FineTune, Bf16>(fine_tune, base, out);
    case DType::kF16: return DifferenceOf<FineTune, F16>(fine_tune, base, out);
    case DType::kF32: return DifferenceOf<FineTune, float>(fine_tune, base, out);
    default: DF_CHECK(false);
  }
}

void DifferenceImpl(const uint8_t* fine_tune, DType dtype, const uint8_t* base, DType base_dtype,
                    std::span<float> out) {
  switch (dtype) {
    case DType::kBf16: return DifferenceFrom<Bf16>(fine_tune, base, base_dtype, out);
    case DType::kF16: return DifferenceFrom<F16>(fine_tune, base, base_dtype, out);
    case DType::kF32: return DifferenceFrom<float>(fine_tune, base, base_dtype, out);
    default: DF_CHECK(false);
  }
}

// ---- Signs: eight columns, a byte, at a time, or as many bytes as a vector has.

using ByteF32 = hn::CappedTag<float, 8>;
using ByteU32 = hn::RebindToUnsigned<ByteF32>;
constexpr size_t kByteF32 = HWY_MIN(size_t{8}, HWY_LANES(float));  // 8, or 4 twice

void PackSignsImpl(std::span<const float> values, uint8_t* bits) {
  const ByteF32 d;
  const auto zero = hn::Zero(d);
  const size_t n_whole = values.size() / 8;
  size_t b = 0;
  if constexpr (kF32 > 8) {
    for (; b + kF32 / 8 <= n_whole; b += kF32 / 8) {
      uint8_t part[8];
      hn::StoreMaskBits(F32(), hn::Ge(hn::LoadU(F32(), values.data() + 8 * b), hn::Zero(F32())), part);
      std::memcpy(bits + b, part, kF32 / 8);
    }
  }
  for (; b < n_whole; ++b) {
    uint8_t byte = 0;
    DF_UNROLL
    for (size_t k = 0; k < 8; k += kByteF32) {
      uint8_t part[8];  // the library may write eight
      hn::StoreMaskBits(d, hn::Ge(hn::LoadU(d, values.data() + 8 * b + k), zero), part);
      byte = static_cast<uint8_t>(byte | part[0] << k);
    }
    bits[b] = byte;
  }
  if (values.size() % 8 != 0) ref::PackSigns(values.subspan(8 * n_whole), bits + n_whole);
}

// +-magnitude by the bits k.. of `byte`.
HWY_INLINE hn::Vec<ByteF32> Signed(hn::Vec<ByteF32> magnitude, uint32_t byte, size_t k, hn::Vec<ByteU32> bit_of_lane) {
  const ByteU32 du;
  const auto own_bit = hn::And(hn::Set(du, byte >> k), bit_of_lane);
  const auto is_minus = hn::VecFromMask(du, hn::Eq(own_bit, hn::Zero(du)));
  const auto flip = hn::And(is_minus, hn::Set(du, 0x80000000U));
  return hn::BitCast(ByteF32(), hn::Xor(hn::BitCast(du, magnitude), flip));
}

// col_scale may be null: ones.
HWY_INLINE void SubtractSigned(const uint8_t* bits, float scale, const float* col_scale, std::span<float> values) {
  const ByteF32 d;
  const auto zero = hn::Zero(d);
  const auto row_scale = hn::Set(d, scale);
  const auto bit_of_lane = hn::Shl(hn::Set(ByteU32(), 1), hn::Iota(ByteU32(), 0));
  const size_t n_whole = values.size() / 8;
  for (size_t b = 0; b < n_whole; ++b) {
    DF_UNROLL
    for (size_t k = 0; k < 8; k += kByteF32) {
      float* const at = values.data() + 8 * b + k;
      const auto magnitude = col_scale == nullptr ? row_scale : hn::Mul(row_scale, hn::LoadU(d, col_scale + 8 * b + k));
      const auto left = hn::Sub(hn::LoadU(d, at), Signed(magnitude, bits[b], k, bit_of_lane));
      hn::StoreU(hn::Add(left, zero), d, at);
    }
  }
}

void SubtractSignsImpl(const uint8_t* bits, float scale, std::span<float> values) {
  SubtractSigned(bits, scale, nullptr, values);
  const size_t done = values.size() / 8 * 8;
  ref::SubtractSigns(bits + done / 8, scale, values.subspan(done));
}

void SubtractScaledSignsImpl(const uint8_t* bits, float scale, std::span<const float> col_scale,
                             std::span<float> values) {
  SubtractSigned(bits, scale, col_scale.data(), values);
  const size_t done = values.size() / 8 * 8;
  ref::SubtractSigns(bits + done / 8, scale, col_scale.subspan(done), values.subspan(done));
}

// ---- Sums in f64 lanes.

using F64 = hn::ScalableTag<double>;
using F64Vec = hn::Vec<F64>;
constexpr size_t kF64 = HWY_LANES(double);

HWY_INLINE F64Vec Widened(const float* from) { return hn::PromoteTo(F64(), hn::LoadU(hn::Rebind<float, F64>(), from)); }

HWY_INLINE double Fold(double* lanes, size_t n_lanes) {
  for (size_t half = n_lanes / 2; half > 0; half /= 2) {
    for (size_t k = 0; k < half; ++k) lanes[k] += lanes[k + half];
  }
  return lanes[0];
}

struct Absolute {
  const float* r;
  HWY_INLINE F64Vec Terms(size_t j) const { return hn::Abs(Widened(r + j)); }
  double Term(size_t j) const { return std::fabs(double{r[j]}); }
};
struct WeightedAbsolute {
  const float* r;
  const double* v;
  HWY_INLINE F64Vec Terms(size_t j) const { return hn::Mul(hn::Abs(Widened(r + j)), hn::LoadU(F64(), v + j)); }
  double Term(size_t j) const { return std::fabs(double{r[j]}) * v[j]; }
};
struct Square {
  const double* v;
  HWY_INLINE F64Vec Terms(size_t j) const {
    const auto x = hn::LoadU(F64(), v + j);
    return hn::Mul(x, x);
  }
  double Term(size_t j) const { return v[j] * v[j]; }
};

// Sum over j of the terms, j < n, in lane j % kSumLanes.
template <typename Addend>
HWY_INLINE double LaneSum(size_t n, const Addend& addend) {
  constexpr size_t kParts = kSumLanes / kF64;
  F64Vec sums[kParts];
  DF_UNROLL
  for (size_t p = 0; p < kParts; ++p) sums[p] = hn::Zero(F64());
  size_t j = 0;
  for (; j + kSumLanes <= n; j += kSumLanes) {
    DF_UNROLL
    for (size_t p = 0; p < kParts; ++p) sums[p] = hn::Add(sums[p], addend.Terms(j + p * kF64));
  }
  double lanes[kSumLanes];
  DF_UNROLL
  for (size_t p = 0; p < kParts; ++p) hn::StoreU(sums[p], F64(), lanes + p * kF64);
  for (size_t k = 0; j + k < n; ++k) lanes[k] += addend.Term(j + k);
  return Fold(lanes, kSumLanes);
}

double AbsSumImpl(std::span<const float> values) { return LaneSum(values.size(), Absolute{values.data()}); }
double AbsDotImpl(std::span<const float> values, std::span<const double> v) {
  return LaneSum(values.size(), WeightedAbsolute{values.data(), v.data()});
}
double SumOfSquaresImpl(std::span<const double> values) { return LaneSum(values.size(), Square{values.data()}); }

void AbsAxpyImpl(double u, std::span<const float> values, std::span<double> sum) {
  const auto factor = hn::Set(F64(), u);
  size_t j = 0;
  for (; j + kF64 <= values.size(); j += kF64) {
    const auto term = hn::Mul(factor, hn::Abs(Widened(values.data() + j)));
    hn::StoreU(hn::Add(hn::LoadU(F64(), sum.data() + j), term), F64(), sum.data() + j);
  }
  for (; j < values.size(); ++j) sum[j] += u * std::fabs(double{values[j]});
}

// Of floats without sign the order is that of their bits.
HWY_INLINE float LargestAbsolute(std::span<const float> values) {
  auto largest = hn::Zero(I32());
  const auto magnitude_bits = hn::Set(I32(), INT32_MAX);
  size_t j = 0;
  for (; j + kF32 <= values.size(); j += kF32) {
    largest = hn::Max(largest, hn::And(hn::BitCast(I32(), hn::LoadU(F32(), values.data() + j)), magnitude_bits));
  }
  float lanes[kF32];
  hn::StoreU(hn::BitCast(F32(), largest), F32(), lanes);
  float result = 0;
  for (const float lane : lanes) result = std::max(result, lane);
  for (; j < values.size(); ++j) result = std::max(result, std::fabs(values[j]));
  return result;
}

ErrorSums SumErrorsImpl(std::span<const float> d, std::span<const float> r) {
  constexpr size_t kParts = kErrorLanes / kF64;
  F64Vec sums[3][kParts];
  DF_UNROLL
  for (size_t p = 0; p < kParts; ++p) sums[0][p] = sums[1][p] = sums[2][p] = hn::Zero(F64());
  size_t j = 0;
  for (; j + kErrorLanes <= d.size(); j += kErrorLanes) {
    DF_UNROLL
    for (size_t p = 0; p < kParts; ++p) {
      const auto x = Widened(d.data() + j + p * kF64), y = Widened(r.data() + j + p * kF64);
      sums[0][p] = hn::Add(sums[0][p], hn::Mul(x, x));
      sums[1][p] = hn::Add(sums[1][p], hn::Mul(x, y));
      sums[2][p] = hn::Add(sums[2][p], hn::Mul(y, y));
    }
  }
  double lanes[3][kErrorLanes];
  DF_UNROLL
  for (size_t p = 0; p < kParts; ++p) {
    for (size_t i = 0; i < 3; ++i) hn::StoreU(sums[i][p], F64(), lanes[i] + p * kF64);
  }
  for (size_t k = 0; j + k < d.size(); ++k) {
    const double x{d[j + k]}, y{r[j + k]};
    lanes[0][k] += x * x;
    lanes[1][k] += x * y;
    lanes[2][k] += y * y;
  }
  return {.difference = Fold(lanes[0], kErrorLanes),
          .cross = Fold(lanes[1], kErrorLanes),
          .error = Fold(lanes[2], kErrorLanes),
          .max_abs_error = double{LargestAbsolute(r)}};
}

}  // namespace df::row_ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace df::row_ops::cpu {
namespace {

HWY_EXPORT(DifferenceImpl);
HWY_EXPORT(PackSignsImpl);
HWY_EXPORT(SubtractSignsImpl);
HWY_EXPORT(SubtractScaledSignsImpl);
HWY_EXPORT(AbsSumImpl);
HWY_EXPORT(AbsDotImpl);
HWY_EXPORT(AbsAxpyImpl);
HWY_EXPORT(SumOfSquaresImpl);
HWY_EXPORT(SumErrorsImpl);
HWY_EXPORT(ReadImpl);
HWY_EXPORT(NarrowImpl);

const uint8_t* RowStart(const TensorView& tensor, size_t row, size_t d_in) {
  return tensor.bytes.data() + row * d_in * DTypeBytes(tensor.dtype);
}

}  // namespace

void Difference(const WeightPair& pair, size_t row, std::span<float> out) {
  HWY_DYNAMIC_DISPATCH(DifferenceImpl)
  (RowStart(pair.fine_tune, row, out.size()), pair.fine_tune.dtype, RowStart(pair.base, row, out.size()),
   pair.base.dtype, out);
}

void PackSigns(std::span<const float> values, uint8_t* bits) { HWY_DYNAMIC_DISPATCH(PackSignsImpl)(values, bits); }

void SubtractSigns(const uint8_t* bits, float scale, std::span<float> values) {
  HWY_DYNAMIC_DISPATCH(SubtractSignsImpl)(bits, scale, values);
}

void SubtractSigns(const uint8_t* bits, float scale, std::span<const float> col_scale, std::span<float> values) {
  HWY_DYNAMIC_DISPATCH(SubtractScaledSignsImpl)(bits, scale, col_scale, values);
}

double AbsSum(std::span<const float> values) { return HWY_DYNAMIC_DISPATCH(AbsSumImpl)(values); }

double AbsDot(std::span<const float> values, std::span<const double> v) {
  return HWY_DYNAMIC_DISPATCH(AbsDotImpl)(values, v);
}

void AbsAxpy(double u, std::span<const float> values, std::span<double> sum) {
  HWY_DYNAMIC_DISPATCH(AbsAxpyImpl)(u, values, sum);
}

double SumOfSquares(std::span<const double> values) { return HWY_DYNAMIC_DISPATCH(SumOfSquaresImpl)(values); }

ErrorSums SumErrors(std::span<const float> d, std::span<const float> r) {
  return HWY_DYNAMIC_DISPATCH(SumErrorsImpl)(d, r);
}

void ReadRow(const TensorView& tensor, size_t row, std::span<float> out) {
  HWY_DYNAMIC_DISPATCH(ReadImpl)(tensor.dtype, RowStart(tensor, row, out.size()), out);
}

bool Narrow(std::span<const float> from, DType dtype, uint8_t* to) {
  return HWY_DYNAMIC_DISPATCH(NarrowImpl)(from, dtype, to);
}

}  // namespace df::row_ops::cpu
#endif  // HWY_ONCE
