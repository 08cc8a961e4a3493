// embed.h over the packed layouts, the same for every vector target: strided reads, bound by memory latency.
#ifndef DELTAFOLD_KERNELS_CPU_EMBED_H_
#define DELTAFOLD_KERNELS_CPU_EMBED_H_

#include "kernels/embed.h"

namespace df::kernels::cpu {

void Embed(KernelContext& context, const PackedWeight& table, std::span<const LinearSegment> segments,
           std::span<const int32_t> tokens, MatView<float> out);

}  // namespace df::kernels::cpu

#endif  // DELTAFOLD_KERNELS_CPU_EMBED_H_
