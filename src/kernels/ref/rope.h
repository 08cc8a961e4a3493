// Scalar oracle of rope.h.
#ifndef DELTAFOLD_KERNELS_REF_ROPE_H_
#define DELTAFOLD_KERNELS_REF_ROPE_H_

#include "kernels/rope.h"

namespace df::kernels::ref {

void ApplyRope(KernelContext& context, MatView<const float> cos, MatView<const float> sin, MatView<float> x);

}  // namespace df::kernels::ref

#endif  // DELTAFOLD_KERNELS_REF_ROPE_H_
