// Scalar oracle of attention.h: one query at a time, sums in f64.
#ifndef DELTAFOLD_KERNELS_REF_ATTENTION_H_
#define DELTAFOLD_KERNELS_REF_ATTENTION_H_

#include "kernels/attention.h"

namespace df::kernels::ref {

void WriteKv(KernelContext& context, std::span<const SequenceSegment> segments, MatView<const float> k,
             MatView<const float> v, const KvLayerView& kv);

void Attention(KernelContext& context, std::span<const SequenceSegment> segments, MatView<const float> q,
               const KvLayerView& kv, const AttentionOptions& options, MatView<float> out);

}  // namespace df::kernels::ref

#endif  // DELTAFOLD_KERNELS_REF_ATTENTION_H_
