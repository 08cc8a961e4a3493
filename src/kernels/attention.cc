#include "kernels/attention.h"

#include "kernels/cpu/attention.h"
#include "kernels/ref/attention.h"
#include "kernels/target.h"

namespace df::kernels {

void WriteKv(KernelContext& context, std::span<const SequenceSegment> segments, MatView<const float> k,
             MatView<const float> v, const KvLayerView& kv) {
  (IsScalarTarget() ? ref::WriteKv : cpu::WriteKv)(context, segments, k, v, kv);
}

void Attention(KernelContext& context, std::span<const SequenceSegment> segments, MatView<const float> q,
               const KvLayerView& kv, const AttentionOptions& options, MatView<float> out) {
  (IsScalarTarget() ? ref::Attention : cpu::Attention)(context, segments, q, kv, options, out);
}

}  // namespace df::kernels
