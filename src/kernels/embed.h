// Rows of an embedding table, with the variant's change applied: raw replacement, replaced rows, or sign planes.
#ifndef DELTAFOLD_KERNELS_EMBED_H_
#define DELTAFOLD_KERNELS_EMBED_H_

#include <cstdint>
#include <span>

#include "kernels/linear.h"
#include "kernels/packed.h"
#include "tensor/kernel_context.h"
#include "tensor/mat.h"

namespace df::kernels {

// out[i] = table[tokens[i]] (+ delta of the row's segment), f32 [n, d_model]. Segments as in linear.h: `delta` has
// d_out = the variant's vocabulary; low_rank entries of a tied table are the head's business and are not applied here.
// Tokens are below the vocabulary of their segment (the caller guarantees it).
void Embed(KernelContext& context, const PackedWeight& table, std::span<const LinearSegment> segments,
           std::span<const int32_t> tokens, MatView<float> out);

}  // namespace df::kernels

#endif  // DELTAFOLD_KERNELS_EMBED_H_
