#include "kernels/cpu/norm.h"

#include <algorithm>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/norm.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace df::kernels::cpu::HWY_NAMESPACE {

// Four chains, then single vectors, then single elements: fixed by d alone. Error of the sum <= (d/(4 lanes) + 8) *
// 2^-24 relative, as all terms are positive.
float SumOfSquares(const float* HWY_RESTRICT x, size_t d) {
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
void NormVector(const float* x, const float* HWY_RESTRICT weight, size_t d, float eps, float* out) {
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

void AddVector(const float* HWY_RESTRICT x, size_t n, float* HWY_RESTRICT y) {
  const FloatTag df;
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) hn::StoreU(hn::Add(hn::LoadU(df, y + i), hn::LoadU(df, x + i)), df, y + i);
  for (; i < n; ++i) y[i] += x[i];
}

}  // namespace df::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace df::kernels::cpu {
namespace {

HWY_EXPORT(NormVector);
HWY_EXPORT(AddVector);

// Rows a thread takes at least: 16 K elements are a microsecond or two, what waking it costs.
size_t GrainRows(size_t cols) { return std::max<size_t>(1, 16384 / std::max<size_t>(1, cols)); }

}  // namespace

void RmsNorm(KernelContext& context, std::span<const NormSegment> segments, float eps, MatView<const float> x,
             MatView<float> out) {
  context.pool.ParallelFor(x.rows, GrainRows(x.cols), [&](size_t begin, size_t end, size_t /*thread*/) {
    for (const NormSegment& segment : segments) {
      for (size_t row = std::max(begin, segment.begin); row < std::min(end, segment.end); ++row) {
        HWY_DYNAMIC_DISPATCH(NormVector)(x.Row(row), segment.weight, x.cols, eps, out.Row(row));
      }
    }
  });
}

void RmsNormHeads(KernelContext& context, std::span<const NormSegment> segments, float eps, size_t head_dim,
                  MatView<float> x) {
  context.pool.ParallelFor(x.rows, GrainRows(x.cols), [&](size_t begin, size_t end, size_t /*thread*/) {
    for (const NormSegment& segment : segments) {
      for (size_t row = std::max(begin, segment.begin); row < std::min(end, segment.end); ++row) {
        for (size_t at = 0; at < x.cols; at += head_dim) {
          float* head = x.Row(row) + at;
          HWY_DYNAMIC_DISPATCH(NormVector)(head, segment.weight, head_dim, eps, head);
        }
      }
    }
  });
}

void AddTo(KernelContext& context, MatView<const float> x, MatView<float> y) {
  context.pool.ParallelFor(y.rows, GrainRows(y.cols), [&](size_t begin, size_t end, size_t /*thread*/) {
    for (size_t row = begin; row < end; ++row) HWY_DYNAMIC_DISPATCH(AddVector)(x.Row(row), y.cols, y.Row(row));
  });
}

}  // namespace df::kernels::cpu
#endif  // HWY_ONCE
