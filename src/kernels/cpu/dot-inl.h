// Dot products of row-major weight rows with one row of activations: for LoRA's A, replaced rows and rows of bytes.
#if defined(DELTAFOLD_KERNELS_CPU_DOT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAFOLD_KERNELS_CPU_DOT_INL_H_
#undef DELTAFOLD_KERNELS_CPU_DOT_INL_H_
#else
#define DELTAFOLD_KERNELS_CPU_DOT_INL_H_
#endif

#include <algorithm>
#include <cstring>

#include "kernels/cpu/simd-inl.h"
#include "kernels/packed.h"

HWY_BEFORE_NAMESPACE();
namespace df::kernels::cpu::HWY_NAMESPACE {

// kLanes stored elements as f32; rows of odd length make them misaligned.
struct Bf16Row {
  static constexpr size_t kBytes = 2;
  static HWY_INLINE FloatVec Load(const uint8_t* from) {
    const hn::Rebind<uint16_t, UintTag> d16;
    const auto bits = hn::LoadU(d16, reinterpret_cast<const uint16_t*>(from));
    return hn::BitCast(FloatTag(), hn::ShiftLeft<16>(hn::PromoteTo(UintTag(), bits)));
  }
};
struct F16Row {
  static constexpr size_t kBytes = 2;
  static HWY_INLINE FloatVec Load(const uint8_t* from) {
    const hn::Rebind<hwy::float16_t, FloatTag> dh;
    return hn::PromoteTo(FloatTag(), hn::LoadU(dh, reinterpret_cast<const hwy::float16_t*>(from)));
  }
};
struct F32Row {
  static constexpr size_t kBytes = 4;
  static HWY_INLINE FloatVec Load(const uint8_t* from) {
    return hn::LoadU(FloatTag(), reinterpret_cast<const float*>(from));
  }
};

struct I8Row {
  static constexpr size_t kBytes = 1;
  static HWY_INLINE FloatVec Load(const uint8_t* from) {
    const hn::Rebind<int8_t, FloatTag> d8;
    const hn::RebindToSigned<FloatTag> di;
    const auto values = hn::LoadU(d8, reinterpret_cast<const int8_t*>(from));
    return hn::ConvertTo(FloatTag(), hn::PromoteTo(di, values));
  }
};

inline constexpr size_t kDotRows = 4;                // weight rows that share the loads of x
inline constexpr size_t kDotStep = 2 * kLanes;       // two chains a row
inline constexpr size_t kDotBlock = 512 / kDotStep;  // steps until sums start anew, as in block_product-inl.h

// One step of R rows. The same operations for any R.
template <class Row, size_t R>
HWY_INLINE void DotStep(const uint8_t* const* rows, size_t offset_bytes, const float* x, FloatVec (&acc)[R][2]) {
  const FloatTag d;
  const FloatVec x0 = hn::LoadU(d, x), x1 = hn::LoadU(d, x + kLanes);
  DF_UNROLL
  for (size_t r = 0; r < R; ++r) {
    const uint8_t* from = rows[r] + offset_bytes;
    acc[r][0] = hn::MulAdd(Row::Load(from), x0, acc[r][0]);
    acc[r][1] = hn::MulAdd(Row::Load(from + kLanes * Row::kBytes), x1, acc[r][1]);
  }
}

// The last n % kDotStep columns, padded with zeros.
template <class Row, size_t R>
HWY_INLINE void DotTail(const uint8_t* const* rows, size_t done, size_t n, const float* x, FloatVec (&acc)[R][2]) {
  HWY_ALIGN uint8_t values[R][kDotStep * Row::kBytes] = {};
  HWY_ALIGN float tail[kDotStep] = {};
  const uint8_t* padded[R];
  std::memcpy(tail, x + done, (n - done) * sizeof(float));
  for (size_t r = 0; r < R; ++r) {
    std::memcpy(values[r], rows[r] + done * Row::kBytes, (n - done) * Row::kBytes);
    padded[r] = values[r];
  }
  DotStep<Row, R>(padded, 0, tail, acc);
}

// out[r] = sum_k rows[r][k] x[k].
template <class Row, size_t R>
inline void DotRows(const uint8_t* const* rows, const float* x, size_t n, float* out) {
  const FloatTag d;
  FloatVec total[R];
  DF_UNROLL
  for (size_t r = 0; r < R; ++r) total[r] = hn::Zero(d);
  for (size_t done = 0; done < n;) {
    FloatVec acc[R][2];
    DF_UNROLL
    for (size_t r = 0; r < R; ++r) acc[r][0] = acc[r][1] = hn::Zero(d);
    const size_t end = std::min(n, done + kDotBlock * kDotStep);
    for (; done + kDotStep <= end; done += kDotStep) {
      DotStep<Row, R>(rows, done * Row::kBytes, x + done, acc);
    }
    if (end == n && done < n) {
      DotTail<Row, R>(rows, done, n, x, acc);
      done = n;
    }
    DF_UNROLL
    for (size_t r = 0; r < R; ++r) total[r] = hn::Add(total[r], hn::Add(acc[r][0], acc[r][1]));
  }
  DF_UNROLL
  for (size_t r = 0; r < R; ++r) out[r] = hn::GetLane(hn::SumOfLanes(d, total[r]));
}

template <class Row>
inline void DotsOf(const RowMajorWeight& weight, size_t begin, size_t end, const float* x, float* out) {
  const uint8_t* rows[kDotRows];
  while (begin < end) {
    const size_t n = std::min(kDotRows, end - begin);
    for (size_t r = 0; r < n; ++r) rows[r] = weight.Row(begin + r);
    if (n == kDotRows) {
      DotRows<Row, kDotRows>(rows, x, weight.d_in, out);
    } else {
      for (size_t r = 0; r < n; ++r) DotRows<Row, 1>(rows + r, x, weight.d_in, out + r);
    }
    begin += n;
    out += n;
  }
}

// out[i] = weight row (begin + i) . x, i < end - begin.
inline void Dots(const RowMajorWeight& weight, size_t begin, size_t end, const float* x, float* out) {
  switch (weight.dtype) {
    case DType::kBf16: return DotsOf<Bf16Row>(weight, begin, end, x, out);
    case DType::kF16: return DotsOf<F16Row>(weight, begin, end, x, out);
    case DType::kI8: return DotsOf<I8Row>(weight, begin, end, x, out);
    default: return DotsOf<F32Row>(weight, begin, end, x, out);
  }
}

}  // namespace df::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DELTAFOLD_KERNELS_CPU_DOT_INL_H_
