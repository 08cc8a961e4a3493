// SwiGLU's elementwise part: out = silu(gate) * up, silu(z) = z / (1 + exp(-z)) (Shazeer 2020).
#ifndef DELTAFOLD_KERNELS_ACTIVATION_H_
#define DELTAFOLD_KERNELS_ACTIVATION_H_

#include "tensor/kernel_context.h"
#include "tensor/mat.h"

namespace df::kernels {

// gate, up, out [n, d_ff] f32; out may be gate or up. Relative error of silu <= 4 ulp for z >= -87; below, silu is
// within 2^-119 of its value (which is under 2^-118). Never NaN from finite input with a finite product.
void SiluMul(KernelContext& context, MatView<const float> gate, MatView<const float> up, MatView<float> out);

}  // namespace df::kernels

#endif  // DELTAFOLD_KERNELS_ACTIVATION_H_
