#include "kernels/cost_attention.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace df::kernels {
namespace {

TEST(CostOfAttention, CountsEveryVisiblePairOnce) {
  const KvLayerView kv = {.dtype = DType::kBf16, .keys = nullptr, .values = nullptr, .n_kv_heads = 2, .head_dim = 8};
  for (const size_t window : {0U, 1U, 5U, 17U, 100U}) {
    for (const size_t position : {0U, 3U, 16U, 40U}) {
      for (const size_t n : {1U, 2U, 30U}) {
        const SequenceSegment segment = {.begin = 4, .end = 4 + n, .position = position};
        size_t pairs = 0;
        size_t first = position + n;
        for (size_t p = position; p < position + n; ++p) {
          const size_t begin = window == 0 || p + 1 < window ? 0 : p + 1 - window;
          pairs += p + 1 - begin;
          first = std::min(first, begin);
        }
        const AttentionCost cost = CostOfAttention({&segment, 1}, kv, {.n_heads = 4, .window = window});
        EXPECT_EQ(cost.flops, static_cast<double>(pairs * 4 * 8 * 4)) << window << " " << position << " " << n;
        const size_t cache_bytes = (position + n - first) * 2 * 2 * 8 * 2;
        EXPECT_EQ(cost.bytes, static_cast<double>(cache_bytes + n * 2 * 4 * 8 * 4));
      }
    }
  }
}

}  // namespace
}  // namespace df::kernels
