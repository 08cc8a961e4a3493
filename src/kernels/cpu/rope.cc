#include "kernels/cpu/rope.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rope.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "hwy/highway.h"
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

void RotateRow(const float* HWY_RESTRICT cos, const float* HWY_RESTRICT sin, size_t half, size_t n_heads,
               float* HWY_RESTRICT x) {
  const FloatTag d;
  const hn::CappedTag<float, 1> single;
  for (size_t head = 0; head < n_heads; ++head) {
    float* low = x + head * 2 * half;
    float* high = low + half;
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

void ApplyRope(KernelContext& context, MatView<const float> cos, MatView<const float> sin, MatView<float> x) {
  // 16 K elements are a microsecond or two, what waking a thread costs.
  const size_t grain = std::max<size_t>(1, 16384 / std::max<size_t>(1, x.cols));
  const size_t half = cos.cols;
  context.pool.ParallelFor(x.rows, grain, [&](size_t begin, size_t end, size_t /*thread*/) {
    for (size_t row = begin; row < end; ++row) {
      HWY_DYNAMIC_DISPATCH(RotateRow)(cos.Row(row), sin.Row(row), half, x.cols / (2 * half), x.Row(row));
    }
  });
}

}  // namespace df::kernels::cpu
#endif  // HWY_ONCE
