// Scalar oracle of norm.h: sums in f64.
#ifndef DELTAFOLD_KERNELS_REF_NORM_H_
#define DELTAFOLD_KERNELS_REF_NORM_H_

#include "kernels/norm.h"

namespace df::kernels::ref {

void RmsNorm(KernelContext& context, std::span<const NormSegment> segments, float eps, MatView<const float> x,
             MatView<float> out);
void AddRmsNorm(KernelContext& context, std::span<const NormSegment> segments, float eps, MatView<const float> added,
                MatView<float> x, MatView<float> out);
void AddTo(KernelContext& context, MatView<const float> x, MatView<float> y);

}  // namespace df::kernels::ref

#endif  // DELTAFOLD_KERNELS_REF_NORM_H_
