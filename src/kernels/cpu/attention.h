// Highway implementation of attention.h, for the vector target in force.
#ifndef DELTAFOLD_KERNELS_CPU_ATTENTION_H_
#define DELTAFOLD_KERNELS_CPU_ATTENTION_H_

#include "kernels/attention.h"

namespace df::kernels::cpu {

void WriteKv(KernelContext& context, std::span<const SequenceSegment> segments, MatView<const float> k,
             MatView<const float> v, const KvLayerView& kv);

void Attention(KernelContext& context, std::span<const SequenceSegment> segments, MatView<const float> q,
               const KvLayerView& kv, const AttentionOptions& options, MatView<float> out);

}  // namespace df::kernels::cpu

#endif  // DELTAFOLD_KERNELS_CPU_ATTENTION_H_
