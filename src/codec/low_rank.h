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

// D alone at `rank`, or, for 0, down to the noise of rounding (at most kMaxCodedRank). Factors are F16 where their
// range allows, else BF16; F32 where rounding them would be more than half the noise. An unchanged weight, or a D that
// is all noise, gives an empty delta at rank 0. The base has all rows. The only errors are those of FindNonFinite and
// linalg/.
Result<EncodedWeight> EncodeLowRank(ThreadPool& pool, const WeightPair& pair, size_t rank);

// Adds the leading part of what `encoded`'s signs leave, and measures anew. Its low rank is empty before.
Status AddLowRankOfResidual(ThreadPool& pool, const WeightPair& pair, size_t rank, EncodedWeight& encoded);

// Adds the factors of the leading `rank` values in `dtype`: B = u diag(s)^(1/2), A = diag(s)^(1/2) vt.
void AddFactors(const linalg::Svd& svd, size_t rank, DType dtype, EncodedWeight& encoded);
// F16 where the factors' range allows, else BF16.
DType NarrowType(const linalg::Svd& svd, size_t rank, size_t d_out, size_t d_in);

// Bytes of both factors in two-byte types.
uint64_t LowRankBytes(size_t d_out, size_t d_in, size_t rank);

}  // namespace df

#endif  // DELTAFOLD_CODEC_LOW_RANK_H_
