#include "kernels/cpu/norm.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/norm.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "hwy/highway.h"
#include "kernels/cpu/norm-inl.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace df::kernels::cpu::HWY_NAMESPACE {

void NormRow(const float* x, const float* weight, size_t d, float eps, float* out) {
  NormVector(x, weight, d, eps, out);
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

HWY_EXPORT(NormRow);
HWY_EXPORT(AddVector);

// Rows are read twice at most and written once.
size_t GrainRows(size_t cols) { return GrainFor(3 * sizeof(float) * cols); }

}  // namespace

void RmsNorm(KernelContext& context, std::span<const NormSegment> segments, float eps, MatView<const float> x,
             MatView<float> out) {
  context.pool.ParallelFor(x.rows, GrainRows(x.cols), [&](size_t begin, size_t end, size_t /*thread*/) {
    for (const NormSegment& segment : segments) {
      for (size_t row = std::max(begin, segment.begin); row < std::min(end, segment.end); ++row) {
        HWY_DYNAMIC_DISPATCH(NormRow)(x.Row(row), segment.weight, x.cols, eps, out.Row(row));
      }
    }
  });
}

void AddRmsNorm(KernelContext& context, std::span<const NormSegment> segments, float eps, MatView<const float> added,
                MatView<float> x, MatView<float> out) {
  context.pool.ParallelFor(x.rows, GrainRows(x.cols), [&](size_t begin, size_t end, size_t /*thread*/) {
    for (const NormSegment& segment : segments) {
      for (size_t row = std::max(begin, segment.begin); row < std::min(end, segment.end); ++row) {
        HWY_DYNAMIC_DISPATCH(AddVector)(added.Row(row), x.cols, x.Row(row));
        HWY_DYNAMIC_DISPATCH(NormRow)(x.Row(row), segment.weight, x.cols, eps, out.Row(row));
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
