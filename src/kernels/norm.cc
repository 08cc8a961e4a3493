#include "kernels/norm.h"

#include "kernels/cpu/norm.h"
#include "kernels/ref/norm.h"
#include "kernels/target.h"

namespace df::kernels {

void RmsNorm(KernelContext& context, std::span<const NormSegment> segments, float eps, MatView<const float> x,
             MatView<float> out) {
  (IsScalarTarget() ? ref::RmsNorm : cpu::RmsNorm)(context, segments, eps, x, out);
}

void AddRmsNorm(KernelContext& context, std::span<const NormSegment> segments, float eps, MatView<const float> added,
                MatView<float> x, MatView<float> out) {
  (IsScalarTarget() ? ref::AddRmsNorm : cpu::AddRmsNorm)(context, segments, eps, added, x, out);
}

void AddTo(KernelContext& context, MatView<const float> x, MatView<float> y) {
  (IsScalarTarget() ? ref::AddTo : cpu::AddTo)(context, x, y);
}

}  // namespace df::kernels
