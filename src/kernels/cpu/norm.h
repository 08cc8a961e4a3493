// Highway implementation of norm.h, for the vector target in force.
#ifndef DELTAFOLD_KERNELS_CPU_NORM_H_
#define DELTAFOLD_KERNELS_CPU_NORM_H_

#include "kernels/norm.h"

namespace df::kernels::cpu {

void RmsNorm(KernelContext& context, std::span<const NormSegment> segments, float eps, MatView<const float> x,
             MatView<float> out);
void AddRmsNorm(KernelContext& context, std::span<const NormSegment> segments, float eps, MatView<const float> added,
                MatView<float> x, MatView<float> out);
void AddTo(KernelContext& context, MatView<const float> x, MatView<float> y);

}  // namespace df::kernels::cpu

#endif  // DELTAFOLD_KERNELS_CPU_NORM_H_
