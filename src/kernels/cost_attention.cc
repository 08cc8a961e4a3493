#include "kernels/cost_attention.h"

#include <algorithm>

namespace df::kernels {
namespace {

// sum over positions p in [begin, end) of min(p + 1, window).
double VisiblePairs(size_t begin, size_t end, size_t window) {
  const auto triangle = [](size_t n) { return static_cast<double>(n) * (static_cast<double>(n) + 1) / 2; };
  if (window == 0) return triangle(end) - triangle(begin);
  const size_t rising = std::clamp(window, begin, end);  // from here on a query sees `window` tokens
  return triangle(rising) - triangle(begin) + static_cast<double>(end - rising) * static_cast<double>(window);
}

double SeenTokens(size_t begin, size_t end, size_t window) {
  const size_t first = window != 0 && begin + 1 > window ? begin + 1 - window : 0;
  return static_cast<double>(end - first);
}

}  // namespace

AttentionCost CostOfAttention(std::span<const SequenceSegment> segments, const KvLayerView& kv,
                              const AttentionOptions& options) {
  AttentionCost cost;
  const auto head_dim = static_cast<double>(kv.head_dim);
  const auto n_heads = static_cast<double>(options.n_heads);
  const double token_bytes = 2 * static_cast<double>(kv.n_kv_heads * kv.head_dim * DTypeBytes(kv.dtype));
  for (const SequenceSegment& segment : segments) {
    if (segment.begin == segment.end) continue;
    const size_t n = segment.end - segment.begin;
    const size_t end = segment.position + n;
    cost.bytes += SeenTokens(segment.position, end, options.window) * token_bytes +
                  static_cast<double>(n) * 2 * n_heads * head_dim * sizeof(float);
    cost.flops += 4 * head_dim * n_heads * VisiblePairs(segment.position, end, options.window);
  }
  return cost;
}

double BytesOfWriteKv(std::span<const SequenceSegment> segments, const KvLayerView& kv) {
  double bytes = 0;
  for (const SequenceSegment& segment : segments) {
    bytes += static_cast<double>((segment.end - segment.begin) * 2 * kv.n_kv_heads * kv.head_dim *
                                 (DTypeBytes(kv.dtype) + sizeof(float)));
  }
  return bytes;
}

}  // namespace df::kernels
