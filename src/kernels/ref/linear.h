// linear.h by its formula: one effective weight row at a time, sums in f64. Oracle and scalar target.
#ifndef DELTAFOLD_KERNELS_REF_LINEAR_H_
#define DELTAFOLD_KERNELS_REF_LINEAR_H_

#include <span>

#include "kernels/linear.h"

namespace df::kernels::ref {

void Linear(KernelContext& context, const LinearWeight& base, std::span<const LinearSegment> segments,
            MatView<const float> x, MatView<float> y);

}  // namespace df::kernels::ref

#endif  // DELTAFOLD_KERNELS_REF_LINEAR_H_
