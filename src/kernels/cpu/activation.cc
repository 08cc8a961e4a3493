#include "kernels/cpu/activation.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/activation.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "hwy/highway.h"
#include "kernels/cpu/exp-inl.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace df::kernels::cpu::HWY_NAMESPACE {

template <class D>
HWY_INLINE void SiluMulVector(D d, const float* gate, const float* up, float* out) {
  const auto z = hn::LoadU(d, gate);
  const auto silu = hn::Div(z, hn::Add(hn::Set(d, 1.0F), Exp(d, hn::Neg(z))));
  hn::StoreU(hn::Mul(silu, hn::LoadU(d, up)), d, out);
}

// No restrict: out may be gate or up.
void SiluMulRow(const float* gate, const float* up, size_t n, float* out) {
  const FloatTag d;
  const hn::CappedTag<float, 1> single;
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) SiluMulVector(d, gate + i, up + i, out + i);
  for (; i < n; ++i) SiluMulVector(single, gate + i, up + i, out + i);
}

}  // namespace df::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace df::kernels::cpu {
namespace {

HWY_EXPORT(SiluMulRow);

}  // namespace

void SiluMul(KernelContext& context, MatView<const float> gate, MatView<const float> up, MatView<float> out) {
  // About 25 cycles a vector take as long as reading and writing its 12 bytes a lane from afar.
  context.pool.ParallelFor(out.rows, GrainFor(3 * sizeof(float) * out.cols),
                           [&](size_t begin, size_t end, size_t /*thread*/) {
                             for (size_t row = begin; row < end; ++row) {
                               HWY_DYNAMIC_DISPATCH(SiluMulRow)(gate.Row(row), up.Row(row), out.cols, out.Row(row));
                             }
                           });
}

}  // namespace df::kernels::cpu
#endif  // HWY_ONCE
