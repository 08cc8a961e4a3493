#include "kernels/activation.h"

#include "kernels/cpu/activation.h"
#include "kernels/ref/activation.h"
#include "kernels/target.h"

namespace df::kernels {

void SiluMul(KernelContext& context, MatView<const float> gate, MatView<const float> up, MatView<float> out) {
  (IsScalarTarget() ? ref::SiluMul : cpu::SiluMul)(context, gate, up, out);
}

}  // namespace df::kernels
