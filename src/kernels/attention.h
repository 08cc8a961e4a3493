// Causal grouped-query attention over a paged KV cache, with an optional sliding window.
//
//   out_i = sum_j softmax_j(scale * q_i . k_j) v_j,   j in [max(0, i - window + 1), i]
//
// Order of summation over the context depends on the query's absolute position alone, in prefill as in decode: parts of
// 256 tokens from position 0, each by online softmax over spans of 64, merged in order. How a prefill is chunked, the
// batch's other rows and the threads change no bit. Scratch grows with the context by one row of sums a head and part,
// for sequences with one query in the batch. Cost: see cost_attention.h.
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

// A long context of one query is shared among threads by such parts: 128 KB of keys and values at a head_dim of 128 in
// bf16 (8 us) outweigh the merging of its state, and 2048 tokens of one key head already occupy 8 threads.
inline constexpr size_t kAttentionPartTokens = 256;

// The key and value pools of one layer, of `dtype` (kF32 or kBf16): [n_blocks][n_kv_heads] blocks of 16 tokens each.
//   values       [16][head_dim]
//   keys, bf16   [head_dim / 2][16][2]   a vector lane is a token and holds a pair of dimensions, as in P32 (packed.h)
//   keys, f32    [head_dim / 2][2][16]
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
