// Scalar oracle of activation.h: silu in f64.
#ifndef DELTAFOLD_KERNELS_REF_ACTIVATION_H_
#define DELTAFOLD_KERNELS_REF_ACTIVATION_H_

#include "kernels/activation.h"

namespace df::kernels::ref {

void SiluMul(KernelContext& context, MatView<const float> gate, MatView<const float> up, MatView<float> out);

}  // namespace df::kernels::ref

#endif  // DELTAFOLD_KERNELS_REF_ACTIVATION_H_
