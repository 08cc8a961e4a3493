// Scalar oracle of rope.h.
#ifndef DELTAFOLD_KERNELS_REF_ROPE_H_
#define DELTAFOLD_KERNELS_REF_ROPE_H_

#include "kernels/rope.h"

namespace df::kernels::ref {

void RotateHeads(KernelContext& context, const HeadRotation& rotation, MatView<float> x);

}  // namespace df::kernels::ref

#endif  // DELTAFOLD_KERNELS_REF_ROPE_H_
