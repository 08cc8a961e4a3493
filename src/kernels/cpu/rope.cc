#include "kernels/cpu/rope.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rope.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "hwy/highway.h"
#include "kernels/cpu/norm-inl.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace df::kernels::cpu::HWY_NAMESPACE {

// Rotates the pairs (low[i], high[i]) of one head by the angle whose cosine and sine are given.
template <class D>
HWY_INLINE void RotatePairs(D d, const float* cos, const float* sin, float* low, float* high) {
  const auto a = hn::LoadU(d, low);
  const auto b = hn::LoadU(d, high);
  const auto c = hn::LoadU(d, cos);
  const auto s = hn::LoadU(d, sin);
  hn::StoreU(hn::NegMulAdd(b, s, hn::Mul(a, c)), d, low);
  hn::StoreU(hn::MulAdd(a, s, hn::Mul(b, c)), d, high);
}

// The heads of row `row`; weight null = no norm.
void RotateRow(const HeadRotation& rotation, size_t row, const float* weight, MatView<float> x) {
  const FloatTag d;
  const hn::CappedTag<float, 1> single;
  const size_t half = rotation.cos.cols;
  const float* HWY_RESTRICT cos = rotation.cos.Row(row);
  const float* HWY_RESTRICT sin = rotation.sin.Row(row);
  for (size_t at = 0; at < x.cols; at += 2 * half) {
    float* low = x.Row(row) + at;
    float* high = low + half;
    if (weight != nullptr) NormVector(low, weight, 2 * half, rotation.eps, low);
    size_t i = 0;
    for (; i + kLanes <= half; i += kLanes) RotatePairs(d, cos + i, sin + i, low + i, high + i);
    for (; i < half; ++i) RotatePairs(single, cos + i, sin + i, low + i, high + i);
  }
}

}  // namespace df::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace df::kernels::cpu {
namespace {

HWY_EXPORT(RotateRow);

}  // namespace

void RotateHeads(KernelContext& context, const HeadRotation& rotation, MatView<float> x) {
  const auto weight_of = [&](size_t row) -> const float* {
    for (const NormSegment& segment : rotation.norm) {
      if (row >= segment.begin && row < segment.end) return segment.weight;
    }
    return nullptr;
  };
  context.pool.ParallelFor(x.rows, GrainFor(3 * sizeof(float) * x.cols), [&](size_t begin, size_t end, size_t) {
    for (size_t row = begin; row < end; ++row) {
      HWY_DYNAMIC_DISPATCH(RotateRow)(rotation, row, weight_of(row), x);
    }
  });
}

}  // namespace df::kernels::cpu
#endif  // HWY_ONCE
