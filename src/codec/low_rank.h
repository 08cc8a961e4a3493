// The low-rank codes: the truncated singular value decomposition of D (LoRA extraction: many fine-tunes are fused
// adapters) or of what signs leave of it.
//
//   D or R = D - D^  ~  B A,   B = U_r diag(s_r)^(1/2) [d_out, r],   A = diag(s_r)^(1/2) V_r^T [r, d_in]
//
// A fused weight is W_ft = round(W_base + B A): rounding to the stored type adds noise of ulp(W_ft)^2 / 12 an entry,
// whose largest singular value is at most about max_i sqrt(sum_j n_ij) + max_j sqrt(sum_i n_ij) (Bandeira and van
// Handel, 2016, theorem 1.1; n the variances). What lies below that edge says nothing about D.
#ifndef DELTAFOLD_CODEC_LOW_RANK_H_
#define DELTAFOLD_CODEC_LOW_RANK_H_

#include "base/thread_pool.h"
#include "codec/codec.h"
#include "linalg/randomized_svd.h"

namespace df {

// Values that a search of ranks looks at first. At 4096 x 4096 they take the bytes of half a plane.
inline constexpr size_t kSearchRank = 64;
// More is not looked for: at 4096 x 4096 rank 256 takes the bytes of two planes of signs.
inline constexpr size_t kMaxCodedRank = 256;

struct RoundingNoise {
  double energy = 0;  // sum of ulp^2 / 12: what |D - B A|^2 is expected to be for a fused adapter
  double edge = 0;    // the largest singular value that noise alone has
};
// Of the fine-tune's stored type. Reads it once.
RoundingNoise MeasureRoundingNoise(ThreadPool& pool, const TensorView& fine_tune);

// How many of the descending values rise above the noise, and above what f32 itself resolves of the largest.
size_t RankAboveNoise(const RoundingNoise& noise, std::span<const float> values, size_t d_out, size_t d_in);

// D alone at `rank` (at most kMaxCodedRank), or, for 0, as EncodeFused finds it. Factors are F16 where their range
// allows, else BF16; F32 where rounding them would add more than a quarter to the energy of what is left, or of the
// fine-tune's own rounding where that is more. An unchanged weight gives an empty delta. The base has all rows. The
// only errors are those of FindNonFinite and linalg/.
Result<EncodedWeight> EncodeLowRank(ThreadPool& pool, const WeightPair& pair, size_t rank);

// The product that a fine-tune had fused in, of at most kMaxCodedRank and proven by fused.h; an empty delta where D is
// none. `found`: the leading kSearchRank values of D, or all. Ranks above are only looked for where they could make up
// D. The bytes are those of EncodeLowRank at the rank found.
Result<EncodedWeight> EncodeFused(ThreadPool& pool, const WeightPair& pair, const RoundingNoise& noise,
                                  linalg::TruncatedSvd found);

// Adds the leading part of what `encoded`'s signs leave, and measures anew. Its low rank is empty before.
Status AddLowRankOfResidual(ThreadPool& pool, const WeightPair& pair, size_t rank, EncodedWeight& encoded);

// Adds the factors of the leading `rank` values in `dtype`: B = u diag(s)^(1/2), A = diag(s)^(1/2) vt.
void AddFactors(const linalg::Svd& svd, size_t rank, DType dtype, EncodedWeight& encoded);
// F16 where the factors' range allows, else BF16.
DType NarrowType(const linalg::Svd& svd, size_t rank, size_t d_out, size_t d_in);

// Bytes of both factors in two-byte types.
uint64_t LowRankBytes(size_t d_out, size_t d_in, size_t rank);

// What the leading `rank` of the `found` values take and leave once stored: both factors' bytes and |D - B A|^2, which
// is never said to be below what sums of f32 values tell. `noise`: the types are EncodeLowRank's; null:
// AddLowRankOfResidual's, of two bytes. `found`: the leading kSearchRank values, or all.
struct LowRankCost {
  uint64_t bytes = 0;
  double error = 0;
};
LowRankCost CostOfRank(const linalg::TruncatedSvd& found, size_t rank, size_t d_out, size_t d_in,
                       const RoundingNoise* noise);

}  // namespace df

#endif  // DELTAFOLD_CODEC_LOW_RANK_H_
