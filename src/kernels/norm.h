// RMSNorm: out = x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich 2019), by rows. By heads: see rope.h.
#ifndef DELTAFOLD_KERNELS_NORM_H_
#define DELTAFOLD_KERNELS_NORM_H_

#include <span>

#include "tensor/kernel_context.h"
#include "tensor/mat.h"

namespace df::kernels {

// Rows [begin, end) use `weight`: variants may have norms of their own.
struct NormSegment {
  size_t begin = 0;
  size_t end = 0;
  const float* weight = nullptr;  // [d]
};

// x, out [n, d] f32; out may be x. Segments are disjoint; rows outside stay untouched.
void RmsNorm(KernelContext& context, std::span<const NormSegment> segments, float eps, MatView<const float> x,
             MatView<float> out);

// x += added, then the norm of x, while it is in the first cache: the bits of AddTo and RmsNorm. `added`, x and out [n,
// d] are three matrices; segments as in RmsNorm, rows outside stay untouched.
void AddRmsNorm(KernelContext& context, std::span<const NormSegment> segments, float eps, MatView<const float> added,
                MatView<float> x, MatView<float> out);

// y += x, both [n, d].
void AddTo(KernelContext& context, MatView<const float> x, MatView<float> y);

}  // namespace df::kernels

#endif  // DELTAFOLD_KERNELS_NORM_H_
