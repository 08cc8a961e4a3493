// Causal grouped-query attention over a paged KV cache, with an optional sliding window.
//
//   out_i = sum_j softmax_j(scale * q_i . k_j) v_j,   j in [max(0, i - window + 1), i]
//
// Order of summation over the context depends on the query's absolute position alone (fixed spans of 64 tokens from
// position 0, online softmax), in prefill as in decode: how a prefill is chunked, the batch's other rows and the
// threads change no bit. Scratch does not grow with the context. Cost: see cost_attention.h.
#ifndef DELTAFOLD_KERNELS_ATTENTION_H_
#define DELTAFOLD_KERNELS_ATTENTION_H_

#include <cstdint>
#include <span>

#include "kernels/linear.h"
#include "tensor/dtype.h"
#include "tensor/kernel_context.h"
#include "tensor/mat.h"

namespace df::kernels {

inline constexpr size_t kKvBlockTokens = 16;

// The key and value pools of one layer: [n_blocks][n_kv_heads][16][head_dim] of `dtype` (kF32 or kBf16) each.
struct KvLayerView {
  DType dtype = DType::kF32;
  void* keys = nullptr;
  void* values = nullptr;
  size_t n_kv_heads = 0;
  size_t head_dim = 0;  // even
};

// Rows [begin, end) of the batch: consecutive positions of one sequence, the first at `position`.
struct SequenceSegment {
  size_t begin = 0;
  size_t end = 0;
  Phase phase = Phase::kDecode;
  size_t position = 0;
  const int32_t* block_table = nullptr;  // [ceil((position + end - begin) / 16)] block ids of the pool
};

// Stores k, v rows [n, n_kv_heads * head_dim] f32 at their positions (bf16 pools: round to nearest even).
void WriteKv(KernelContext& context, std::span<const SequenceSegment> segments, MatView<const float> k,
             MatView<const float> v, const KvLayerView& kv);

struct AttentionOptions {
  size_t n_heads = 0;  // multiple of kv.n_kv_heads
  float scale = 1.0F;  // 1 / sqrt(head_dim)
  size_t window = 0;   // 0 = unlimited
};

// q, out [n, n_heads * head_dim] f32, not aliasing. Keys and values up to each query's own position are in `kv`.
void Attention(KernelContext& context, std::span<const SequenceSegment> segments, MatView<const float> q,
               const KvLayerView& kv, const AttentionOptions& options, MatView<float> out);

}  // namespace df::kernels

#endif  // DELTAFOLD_KERNELS_ATTENTION_H_
