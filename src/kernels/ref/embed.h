// Scalar oracle of embed.h: single reads through PackedWeight::At.
#ifndef DELTAFOLD_KERNELS_REF_EMBED_H_
#define DELTAFOLD_KERNELS_REF_EMBED_H_

#include "kernels/embed.h"

namespace df::kernels::ref {

void Embed(KernelContext& context, const PackedWeight& table, std::span<const LinearSegment> segments,
           std::span<const int32_t> tokens, MatView<float> out);

}  // namespace df::kernels::ref

#endif  // DELTAFOLD_KERNELS_REF_EMBED_H_
