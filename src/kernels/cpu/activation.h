// Highway implementation of activation.h, for the vector target in force.
#ifndef DELTAFOLD_KERNELS_CPU_ACTIVATION_H_
#define DELTAFOLD_KERNELS_CPU_ACTIVATION_H_

#include "kernels/activation.h"

namespace df::kernels::cpu {

void SiluMul(KernelContext& context, MatView<const float> gate, MatView<const float> up, MatView<float> out);

}  // namespace df::kernels::cpu

#endif  // DELTAFOLD_KERNELS_CPU_ACTIVATION_H_
