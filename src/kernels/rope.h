// Rotary position embedding (Su et al. 2021) in the half-split form of Llama: pairs are (i, i + head_dim/2).
#ifndef DELTAFOLD_KERNELS_ROPE_H_
#define DELTAFOLD_KERNELS_ROPE_H_

#include <cstdint>
#include <span>

#include "kernels/norm.h"
#include "tensor/kernel_context.h"
#include "tensor/mat.h"

namespace df::kernels {

// Rows [begin, end) rotate by these frequencies: variants may have RoPE settings of their own.
struct RopeSegment {
  size_t begin = 0;
  size_t end = 0;
  const float* inv_freq = nullptr;  // [head_dim / 2]
  float magnitude = 1.0F;           // multiplies cos and sin (yarn's attention factor)
};

// cos, sin [n, head_dim/2] f32 for positions [n]; the angle is the f32 product position * inv_freq, as the reference
// does.
void RopeAngles(KernelContext& context, std::span<const RopeSegment> segments, std::span<const int32_t> positions,
                MatView<float> cos, MatView<float> sin);

struct HeadRotation {
  MatView<const float> cos;           // [n, head_dim / 2]
  MatView<const float> sin;           // [n, head_dim / 2]
  std::span<const NormSegment> norm;  // covering every row, weights [head_dim] (Qwen3's q_norm, k_norm); empty = none
  float eps = 0.0F;                   // of the norm
};

// Every head of x [n, n_heads * head_dim] in place: RMSNorm where there is one, then the rotation.
void RotateHeads(KernelContext& context, const HeadRotation& rotation, MatView<float> x);

}  // namespace df::kernels

#endif  // DELTAFOLD_KERNELS_ROPE_H_
