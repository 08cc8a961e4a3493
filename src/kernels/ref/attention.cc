#include "kernels/ref/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/float16.h"
#include "kernels/scratch_slots.h"

namespace df::kernels::ref {
namespace {

// Offset in elements of the block that holds (token at `position`, kv_head).
size_t BlockOffset(const SequenceSegment& segment, const KvLayerView& kv, size_t position, size_t kv_head) {
  const auto block = static_cast<size_t>(segment.block_table[position / kKvBlockTokens]);
  return (block * kv.n_kv_heads + kv_head) * kKvBlockTokens * kv.head_dim;
}

size_t KeyOffset(const KvLayerView& kv, size_t position, size_t dim) {
  const size_t token = position % kKvBlockTokens;
  if (kv.dtype != DType::kBf16) return dim * kKvBlockTokens + token;
  return (dim / 2 * kKvBlockTokens + token) * 2 + dim % 2;
}

size_t ValueOffset(const KvLayerView& kv, size_t position, size_t dim) {
  return position % kKvBlockTokens * kv.head_dim + dim;
}

float ReadElement(const KvLayerView& kv, const void* pool, size_t i) {
  return kv.dtype == DType::kBf16 ? ToFloat(static_cast<const Bf16*>(pool)[i]) : static_cast<const float*>(pool)[i];
}

void WriteElement(const KvLayerView& kv, void* pool, size_t i, float value) {
  if (kv.dtype == DType::kBf16) {
    static_cast<Bf16*>(pool)[i] = ToBf16(value);
  } else {
    static_cast<float*>(pool)[i] = value;
  }
}

struct Query {
  const float* q = nullptr;  // [head_dim]
  size_t position = 0;
  size_t kv_head = 0;
};

double Score(const SequenceSegment& segment, const KvLayerView& kv, const Query& query, size_t j, float scale) {
  const size_t block = BlockOffset(segment, kv, j, query.kv_head);
  double sum = 0;
  for (size_t d = 0; d < kv.head_dim; ++d) {
    sum += double{query.q[d]} * double{ReadElement(kv, kv.keys, block + KeyOffset(kv, j, d))};
  }
  return sum * double{scale};
}

// Two passes over the keys: the largest score, then weights and values. `acc` [head_dim] is scratch.
void Attend(const SequenceSegment& segment, const KvLayerView& kv, const Query& query, const AttentionOptions& options,
            double* acc, float* out) {
  const size_t end = query.position + 1;
  const size_t begin = options.window != 0 && end > options.window ? end - options.window : 0;
  double largest = -std::numeric_limits<double>::infinity();
  for (size_t j = begin; j < end; ++j) {
    largest = std::max(largest, Score(segment, kv, query, j, options.scale));
  }
  std::fill_n(acc, kv.head_dim, 0.0);
  double total = 0;
  for (size_t j = begin; j < end; ++j) {
    const double weight = std::exp(Score(segment, kv, query, j, options.scale) - largest);
    const size_t block = BlockOffset(segment, kv, j, query.kv_head);
    total += weight;
    for (size_t d = 0; d < kv.head_dim; ++d) {
      acc[d] += weight * double{ReadElement(kv, kv.values, block + ValueOffset(kv, j, d))};
    }
  }
  for (size_t d = 0; d < kv.head_dim; ++d) out[d] = static_cast<float>(acc[d] / total);
}

}  // namespace

void WriteKv(KernelContext& /*context*/, std::span<const SequenceSegment> segments, MatView<const float> k,
             MatView<const float> v, const KvLayerView& kv) {
  for (const SequenceSegment& segment : segments) {
    for (size_t row = segment.begin; row < segment.end; ++row) {
      for (size_t head = 0; head < kv.n_kv_heads; ++head) {
        const size_t position = segment.position + row - segment.begin;
        const size_t block = BlockOffset(segment, kv, position, head);
        for (size_t d = 0; d < kv.head_dim; ++d) {
          WriteElement(kv, kv.keys, block + KeyOffset(kv, position, d), k.Row(row)[head * kv.head_dim + d]);
          WriteElement(kv, kv.values, block + ValueOffset(kv, position, d), v.Row(row)[head * kv.head_dim + d]);
        }
      }
    }
  }
}

void Attention(KernelContext& context, std::span<const SequenceSegment> segments, MatView<const float> q,
               const KvLayerView& kv, const AttentionOptions& options, MatView<float> out) {
  double* acc = context.scratch.Get<double>(kSlotAttention, kv.head_dim);
  const size_t group = options.n_heads / kv.n_kv_heads;
  for (const SequenceSegment& segment : segments) {
    for (size_t row = segment.begin; row < segment.end; ++row) {
      for (size_t head = 0; head < options.n_heads; ++head) {
        const Query query = {.q = q.Row(row) + head * kv.head_dim,
                             .position = segment.position + row - segment.begin,
                             .kv_head = head / group};
        Attend(segment, kv, query, options, acc, out.Row(row) + head * kv.head_dim);
      }
    }
  }
}

}  // namespace df::kernels::ref
