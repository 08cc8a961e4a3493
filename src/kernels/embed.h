// Rows of an embedding table, with the variant's change applied.
#ifndef DELTAFOLD_KERNELS_EMBED_H_
#define DELTAFOLD_KERNELS_EMBED_H_

#include <cstdint>
#include <span>

#include "kernels/linear.h"
#include "kernels/packed.h"
#include "tensor/kernel_context.h"
#include "tensor/mat.h"

namespace df::kernels {

// out[i] = row tokens[i] of the weight that linear.h's formula multiplies by, f32 [n, d_model]:
//
//   gain * ( (replaced row, or (raw or table) + planes) + sum_q scale_q b_q[token] A_q )
//
// Segments as in linear.h: `delta` has d_out = the variant's vocabulary. Tokens are below the vocabulary of their
// segment (the caller guarantees it). A row's bits depend on its token and delta alone. |out - exact| <= (2 * planes +
// rank + 3) * 2^-24 * the same formula over absolute values.
void Embed(KernelContext& context, const PackedWeight& table, std::span<const LinearSegment> segments,
           std::span<const int32_t> tokens, MatView<float> out);

}  // namespace df::kernels

#endif  // DELTAFOLD_KERNELS_EMBED_H_
