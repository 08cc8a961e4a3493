// What a call of Attention must move and compute at least: for planning, and for benchmarks to set times against
// limits.
#ifndef DELTAFOLD_KERNELS_COST_ATTENTION_H_
#define DELTAFOLD_KERNELS_COST_ATTENTION_H_

#include <span>

#include "kernels/attention.h"

namespace df::kernels {

struct AttentionCost {
  double bytes = 0;  // keys and values that any query of a segment sees, once; queries and outputs once
  double flops = 0;  // 4 head_dim a (query, head, visible token): a product and a sum for the score, and for the value
};

AttentionCost CostOfAttention(std::span<const SequenceSegment> segments, const KvLayerView& kv,
                              const AttentionOptions& options);

// Bytes that WriteKv stores and reads.
double BytesOfWriteKv(std::span<const SequenceSegment> segments, const KvLayerView& kv);

}  // namespace df::kernels

#endif  // DELTAFOLD_KERNELS_COST_ATTENTION_H_
