// One look at a row: its magnitudes, its signs, its largest difference.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <vector>

#include "base/check.h"
#include "codec/cpu/row_ops.h"
#include "codec/ref/row_ops.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/cpu/magnitudes.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "codec/cpu/load-inl.h"
#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace df::row_ops::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using I16 = hn::Repartition<int16_t, F32>;
constexpr size_t kTurn = 2 * kF32;  // elements that a source gives at once, those of even and those of odd columns
constexpr size_t kTurns = kMagnitudeLanes / kTurn;
static_assert(kTurns > 0 && kMagnitudeBlock % kMagnitudeLanes == 0);

// ---- Sources: columns [j, j + kTurn) as two vectors, or those from j on as ref/ has them.

struct Values {
  std::span<const float> values;

  size_t size() const { return values.size(); }
  HWY_INLINE void Load(size_t j, F32Vec& even, F32Vec& odd) const {
    const auto a = hn::LoadU(F32(), values.data() + j), b = hn::LoadU(F32(), values.data() + j + kF32);
    even = hn::ConcatEven(F32(), b, a);
    odd = hn::ConcatOdd(F32(), b, a);
  }
  void Read(size_t j, std::span<float> out) const { std::copy_n(values.data() + j, out.size(), out.data()); }
};

// d_in columns of both tensors' rows.
struct Rows {
  const uint8_t *fine_tune, *base;
  size_t d_in;
  size_t size() const { return d_in; }
};

template <typename FineTune, typename Base>
struct Differences : Rows {
  HWY_INLINE F32Vec At(size_t j) const {
    return hn::Sub(LoadFloats<FineTune>(fine_tune + j * sizeof(FineTune)), LoadFloats<Base>(base + j * sizeof(Base)));
  }
  HWY_INLINE void Load(size_t j, F32Vec& even, F32Vec& odd) const {
    const auto a = At(j), b = At(j + kF32);
    even = hn::ConcatEven(F32(), b, a);
    odd = hn::ConcatOdd(F32(), b, a);
  }
  void Read(size_t j, std::span<float> out) const {
    for (size_t k = 0; k < out.size(); ++k) {
      const float w = ToFloat(LoadUnaligned<FineTune>(fine_tune + (j + k) * sizeof(FineTune)));
      out[k] = (w - ToFloat(LoadUnaligned<Base>(base + (j + k) * sizeof(Base)))) + 0.0F;
    }
  }
};

// Two neighbours share 32 bits: each is an f32 already once the other is cleared or shifted out.
struct BfloatDifferences : Differences<Bf16, Bf16> {
  HWY_INLINE void Load(size_t j, F32Vec& even, F32Vec& odd) const {
    const auto upper = hn::Set(U32(), 0xFFFF0000U);
    const auto w = LoadBytes(U32(), fine_tune + j * sizeof(Bf16)), w0 = LoadBytes(U32(), base + j * sizeof(Bf16));
    even = hn::Sub(hn::BitCast(F32(), hn::ShiftLeft<16>(w)), hn::BitCast(F32(), hn::ShiftLeft<16>(w0)));
    odd = hn::Sub(hn::BitCast(F32(), hn::And(w, upper)), hn::BitCast(F32(), hn::And(w0, upper)));
  }
};

// ---- Looks.

// Of floats without sign the order is that of their bits.
HWY_INLINE hn::Vec<I32> MagnitudeBits(F32Vec values) { return hn::BitCast(I32(), hn::Abs(values)); }

HWY_INLINE float Smallest(hn::Vec<I32> bits) {
  int32_t lanes[kF32];
  hn::StoreU(bits, I32(), lanes);
  int32_t smallest = lanes[0];
  for (const int32_t lane : lanes) smallest = std::min(smallest, lane);
  return std::bit_cast<float>(smallest);
}
HWY_INLINE float Largest(hn::Vec<I32> bits) {
  int32_t lanes[kF32];
  hn::StoreU(bits, I32(), lanes);
  int32_t largest = lanes[0];
  for (const int32_t lane : lanes) largest = std::max(largest, lane);
  return std::bit_cast<float>(largest);
}

// Sums of a row: lanes of f32 while in a block, of f64 else.
struct MagnitudeSums {
  // `above` and `squares` of vector v: even columns of a turn where v is even, odd ones where it is odd.
  HWY_INLINE void AddBlock(const F32Vec* above_of, const F32Vec* squares_of, std::span<const float> rest, float pivot) {
    float block[2][kMagnitudeLanes];
    DF_UNROLL
    for (size_t v = 0; v < 2 * kTurns; ++v) {
      const size_t lane = v % 2 * (kMagnitudeLanes / 2) + v / 2 * kF32;
      hn::StoreU(above_of[v], F32(), block[0] + lane);
      hn::StoreU(squares_of[v], F32(), block[1] + lane);
    }
    for (size_t k = 0; k < rest.size(); ++k) {
      const size_t lane = k % 2 * (kMagnitudeLanes / 2) + k / 2;
      const float over = std::fabs(rest[k]) - pivot;
      block[0][lane] += over;
      block[1][lane] += over * over;
    }
    for (size_t i = 0; i < 2; ++i) {
      for (size_t k = 0; k < kMagnitudeLanes; ++k) lanes[i][k] += double{block[i][k]};
    }
  }
  HWY_INLINE double Folded(size_t i) {
    for (size_t half = kMagnitudeLanes / 2; half > 0; half /= 2) {
      for (size_t k = 0; k < half; ++k) lanes[i][k] += lanes[i][k + half];
    }
    return lanes[i][0];
  }

  double lanes[2][kMagnitudeLanes] = {};  // above, squares
};

HWY_INLINE void StoreSigns(F32Vec even, F32Vec odd, uint8_t* bits) {
  const auto zero = hn::Zero(F32());
  const auto is_plus = hn::OddEven(hn::BitCast(I16(), hn::VecFromMask(F32(), hn::Ge(odd, zero))),
                                   hn::BitCast(I16(), hn::VecFromMask(F32(), hn::Ge(even, zero))));
  uint8_t part[8];  // the library may write eight
  hn::StoreMaskBits(I16(), hn::MaskFromVec(is_plus), part);
  std::memcpy(bits, part, kTurn / 8);
}

template <typename Source>
HWY_INLINE float PivotOf(const Source& source) {
  auto least = hn::Set(I32(), INT32_MAX);
  for (size_t t = 0; t < kTurns; ++t) {
    F32Vec even, odd;
    source.Load(t * kTurn, even, odd);
    least = hn::Min(least, hn::Min(MagnitudeBits(even), MagnitudeBits(odd)));
  }
  return Smallest(least);
}

// `bits` null: no signs are asked for.
template <typename Source>
Magnitudes LookByElement(const Source& source, uint8_t* bits) {
  std::vector<float> values(source.size());
  source.Read(0, values);
  if (bits != nullptr) ref::PackSigns(values, bits);
  return ref::MagnitudesOf(values);
}

template <bool kWithSigns, typename Source>
HWY_INLINE Magnitudes Look(const Source& source, uint8_t* bits) {
  const size_t n = source.size();
  if (n < kMagnitudeLanes) return LookByElement(source, bits);
  const float pivot = PivotOf(source);
  const auto p = hn::Set(F32(), pivot);
  auto smallest = hn::Set(I32(), INT32_MAX), largest = hn::Zero(I32());
  MagnitudeSums sums;
  for (size_t begin = 0; begin < n; begin += kMagnitudeBlock) {
    const size_t end = std::min(n, begin + kMagnitudeBlock);
    F32Vec above[2 * kTurns], squares[2 * kTurns];
    DF_UNROLL
    for (size_t v = 0; v < 2 * kTurns; ++v) above[v] = squares[v] = hn::Zero(F32());
    size_t j = begin;
    for (; j + kMagnitudeLanes <= end; j += kMagnitudeLanes) {
      DF_UNROLL
      for (size_t t = 0; t < kTurns; ++t) {
        F32Vec d[2];
        source.Load(j + t * kTurn, d[0], d[1]);
        if constexpr (kWithSigns) StoreSigns(d[0], d[1], bits + (j + t * kTurn) / 8);
        DF_UNROLL
        for (size_t odd = 0; odd < 2; ++odd) {
          const auto magnitude = hn::Abs(d[odd]);
          smallest = hn::Min(smallest, hn::BitCast(I32(), magnitude));
          largest = hn::Max(largest, hn::BitCast(I32(), magnitude));
          const auto over = hn::Sub(magnitude, p);
          above[2 * t + odd] = hn::Add(above[2 * t + odd], over);
          squares[2 * t + odd] = hn::Add(squares[2 * t + odd], hn::Mul(over, over));
        }
      }
    }
    float rest[kMagnitudeLanes];
    const std::span<float> left(rest, end - j);
    if (!left.empty()) {
      source.Read(j, left);
      if constexpr (kWithSigns) ref::PackSigns(left, bits + j / 8);
      for (const float value : left) {
        const auto magnitude = MagnitudeBits(hn::Set(F32(), value));
        smallest = hn::Min(smallest, magnitude);
        largest = hn::Max(largest, magnitude);
      }
    }
    sums.AddBlock(above, squares, left, pivot);
  }
  Magnitudes result = {.n = n,
                       .pivot = double{pivot},
                       .above = sums.Folded(0),
                       .above_squares = sums.Folded(1),
                       .smallest = Smallest(smallest),
                       .largest = Largest(largest)};
  return IsNarrow(result.largest, result.above) ? result : LookByElement(source, nullptr);
}

template <typename Source>
HWY_INLINE float LargestOf(const Source& source) {
  const size_t n = source.size();
  auto largest = hn::Zero(I32());
  size_t j = 0;
  for (; j + kTurn <= n; j += kTurn) {
    F32Vec even, odd;
    source.Load(j, even, odd);
    largest = hn::Max(largest, hn::Max(MagnitudeBits(even), MagnitudeBits(odd)));
  }
  float rest[kTurn];
  const std::span<float> left(rest, n - j);
  source.Read(j, left);
  for (const float value : left) largest = hn::Max(largest, MagnitudeBits(hn::Set(F32(), value)));
  return Largest(largest);
}

// What Look and LargestOf are given a source by, whatever the stored types.
struct LookForSigns {
  uint8_t* bits;
  template <typename Source>
  HWY_INLINE Magnitudes operator()(const Source& source) const {
    return Look<true>(source, bits);
  }
};
struct LookForLargest {
  template <typename Source>
  HWY_INLINE float operator()(const Source& source) const {
    return LargestOf(source);
  }
};

template <typename FineTune, typename Looking>
HWY_INLINE auto LookFrom(const Rows& rows, DType base_dtype, const Looking& look) {
  switch (base_dtype) {
    case DType::kBf16:
      if constexpr (std::is_same_v<FineTune, Bf16>) {
        return look(BfloatDifferences{{rows}});
      } else {
        return look(Differences<FineTune, Bf16>{rows});
      }
    case DType::kF16: return look(Differences<FineTune, F16>{rows});
    case DType::kF32: return look(Differences<FineTune, float>{rows});
    default: DF_CHECK(false);
  }
}

template <typename Looking>
HWY_INLINE auto LookAt(const Rows& rows, DType dtype, DType base_dtype, const Looking& look) {
  switch (dtype) {
    case DType::kBf16: return LookFrom<Bf16>(rows, base_dtype, look);
    case DType::kF16: return LookFrom<F16>(rows, base_dtype, look);
    case DType::kF32: return LookFrom<float>(rows, base_dtype, look);
    default: DF_CHECK(false);
  }
}

Magnitudes MagnitudesOfImpl(std::span<const float> values) { return Look<false>(Values{values}, nullptr); }

Magnitudes SignsOfDifferenceImpl(const uint8_t* fine_tune, DType dtype, const uint8_t* base, DType base_dtype, size_t n,
                                 uint8_t* bits) {
  return LookAt({fine_tune, base, n}, dtype, base_dtype, LookForSigns{bits});
}

float LargestDifferenceImpl(const uint8_t* fine_tune, DType dtype, const uint8_t* base, DType base_dtype, size_t n) {
  return LookAt({fine_tune, base, n}, dtype, base_dtype, LookForLargest());
}

}  // namespace df::row_ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace df::row_ops::cpu {
namespace {

HWY_EXPORT(MagnitudesOfImpl);
HWY_EXPORT(SignsOfDifferenceImpl);
HWY_EXPORT(LargestDifferenceImpl);

const uint8_t* RowStart(const TensorView& tensor, size_t row, size_t d_in) {
  return tensor.bytes.data() + row * d_in * DTypeBytes(tensor.dtype);
}

}  // namespace

Magnitudes MagnitudesOf(std::span<const float> values) { return HWY_DYNAMIC_DISPATCH(MagnitudesOfImpl)(values); }

Magnitudes SignsOfDifference(const WeightPair& pair, size_t row, size_t d_in, uint8_t* bits) {
  return HWY_DYNAMIC_DISPATCH(SignsOfDifferenceImpl)(RowStart(pair.fine_tune, row, d_in), pair.fine_tune.dtype,
                                                     RowStart(pair.base, row, d_in), pair.base.dtype, d_in, bits);
}

float LargestDifference(const WeightPair& pair, size_t row, size_t d_in) {
  return HWY_DYNAMIC_DISPATCH(LargestDifferenceImpl)(RowStart(pair.fine_tune, row, d_in), pair.fine_tune.dtype,
                                                     RowStart(pair.base, row, d_in), pair.base.dtype, d_in);
}

}  // namespace df::row_ops::cpu
#endif  // HWY_ONCE
