// Highway implementation of rope.h, for the vector target in force.
#ifndef DELTAFOLD_KERNELS_CPU_ROPE_H_
#define DELTAFOLD_KERNELS_CPU_ROPE_H_

#include "kernels/rope.h"

namespace df::kernels::cpu {

void RotateHeads(KernelContext& context, const HeadRotation& rotation, MatView<float> x);

}  // namespace df::kernels::cpu

#endif  // DELTAFOLD_KERNELS_CPU_ROPE_H_
