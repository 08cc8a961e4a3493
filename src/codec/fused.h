// The proof that a fine-tune is its base with a product fused in: W_ft = round(W_base + B A), rounded to the stored
// type.
//
// That little is left of D is no proof: where a few weights moved by one ulp each, D is itself no more than rounding,
// and any product leaves as much. A product is the truth where D is well above rounding and what it leaves, that is no
// more than rounding, and W_base + B A rounds to most of the weights that changed. One that is estimated from mn
// roundings misses the truth by r (m + n) / (m n) of their energy (its degrees of freedom), so that some go the other
// way: 7 % to 21 % for the adapters that low_rank_test.cc plants, while 94 % and more of single ulps do not come back.
#ifndef DELTAFOLD_CODEC_FUSED_H_
#define DELTAFOLD_CODEC_FUSED_H_

#include "base/thread_pool.h"
#include "codec/codec.h"

namespace df {

// What a fused product may leave where rounding is expected to leave `rounding`.
constexpr double FusedRest(double rounding) { return 1.5 * rounding; }

// Whether a rank is low enough for W_base + B A to be told from any other matrix: at most half the degrees of freedom.
constexpr bool IsLowRank(size_t rank, size_t d_out, size_t d_in) { return 2 * rank * (d_out + d_in) <= d_out * d_in; }

struct FusedTruth {
  double difference = 0;  // |D|^2
  double rounding = 0;    // sum of ulp^2 / 12 of the fine-tune
  double resolved = 0;    // |.| of what f32's own rounding may put B A from the product
};

// Whether `encoded`, whose quality is measured, is that product. Reads both tensors once where the energies allow it.
bool IsFused(ThreadPool& pool, const WeightPair& pair, const EncodedWeight& encoded, const FusedTruth& truth);

}  // namespace df

#endif  // DELTAFOLD_CODEC_FUSED_H_
