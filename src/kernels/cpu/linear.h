// linear.h's Linear on the chosen vector target.
#ifndef DELTAFOLD_KERNELS_CPU_LINEAR_H_
#define DELTAFOLD_KERNELS_CPU_LINEAR_H_

#include <span>

#include "kernels/linear.h"

namespace df::kernels::cpu {

void Linear(KernelContext& context, const LinearWeight& base, std::span<const LinearSegment> segments,
            MatView<const float> x, MatView<float> y);

}  // namespace df::kernels::cpu

#endif  // DELTAFOLD_KERNELS_CPU_LINEAR_H_
