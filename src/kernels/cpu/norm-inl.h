// RMSNorm of one vector, shared by norm (rows) and rope (heads). Included once a vector target.
#if defined(DELTAFOLD_KERNELS_CPU_NORM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAFOLD_KERNELS_CPU_NORM_INL_H_
#undef DELTAFOLD_KERNELS_CPU_NORM_INL_H_
#else
#define DELTAFOLD_KERNELS_CPU_NORM_INL_H_
#endif

#include <cmath>

#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace df::kernels::cpu::HWY_NAMESPACE {

// Four chains, then single vectors, then single elements: fixed by d alone. Error of the sum <= (d/(4 lanes) + 8) *
// 2^-24 relative, as all terms are positive.
HWY_INLINE float SumOfSquares(const float* HWY_RESTRICT x, size_t d) {
  const FloatTag df;
  auto s0 = hn::Zero(df);
  auto s1 = s0;
  auto s2 = s0;
  auto s3 = s0;
  size_t i = 0;
  for (; i + 4 * kLanes <= d; i += 4 * kLanes) {
    const auto x0 = hn::LoadU(df, x + i);
    const auto x1 = hn::LoadU(df, x + i + kLanes);
    const auto x2 = hn::LoadU(df, x + i + 2 * kLanes);
    const auto x3 = hn::LoadU(df, x + i + 3 * kLanes);
    s0 = hn::MulAdd(x0, x0, s0);
    s1 = hn::MulAdd(x1, x1, s1);
    s2 = hn::MulAdd(x2, x2, s2);
    s3 = hn::MulAdd(x3, x3, s3);
  }
  for (; i + kLanes <= d; i += kLanes) {
    const auto x0 = hn::LoadU(df, x + i);
    s0 = hn::MulAdd(x0, x0, s0);
  }
  double sum = double{hn::GetLane(hn::SumOfLanes(df, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3))))};
  for (; i < d; ++i) sum += double{x[i]} * double{x[i]};
  return static_cast<float>(sum);
}

// out = x / sqrt(mean(x^2) + eps) * weight; out may be x.
HWY_INLINE void NormVector(const float* x, const float* HWY_RESTRICT weight, size_t d, float eps, float* out) {
  const FloatTag df;
  const float mean = SumOfSquares(x, d) / static_cast<float>(d);
  const float inverse = 1.0F / std::sqrt(mean + eps);
  const auto scale = hn::Set(df, inverse);
  size_t i = 0;
  for (; i + kLanes <= d; i += kLanes) {
    hn::StoreU(hn::Mul(hn::Mul(hn::LoadU(df, x + i), scale), hn::LoadU(df, weight + i)), df, out + i);
  }
  for (; i < d; ++i) out[i] = x[i] * inverse * weight[i];
}

}  // namespace df::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DELTAFOLD_KERNELS_CPU_NORM_INL_H_
