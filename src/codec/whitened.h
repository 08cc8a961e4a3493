// The low-rank codes fitted to outputs (inputs.h): of all B A of a rank the one whose outputs are closest.
//
//   min | G L^-T - B A L |,   C = L L^T,  G = R C + W_ft E  (output_target.h)
//   G L^-T = U diag(s) V^T    =>   B = U_r diag(s_r)^(1/2),   A = diag(s_r)^(1/2) V_r^T L^-1
#ifndef DELTAFOLD_CODEC_WHITENED_H_
#define DELTAFOLD_CODEC_WHITENED_H_

#include "base/thread_pool.h"
#include "codec/codec.h"
#include "codec/inputs.h"
#include "linalg/randomized_svd.h"

namespace df {

// G L^-T and L, of what the parts of `others` leave.
struct WhitenedTarget {
  Mat<float> target;  // [d_out, d_in]
  Mat<float> lower;   // [d_in, d_in] L
};
// `inputs` have C. The only errors are those of linalg/.
Result<WhitenedTarget> Whiten(ThreadPool& pool, const WeightPair& pair, const LinearDelta& others,
                              const WeightInputs& inputs);

// Adds the best low rank beside what `encoded` holds, whose low rank is empty, and measures anew. Memory: d_out d_in
// and d_in^2 f32 and what RandomizedSvd takes.
Status AddWhitenedLowRank(ThreadPool& pool, const WeightPair& pair, const WeightInputs& inputs, size_t rank,
                          EncodedWeight& encoded);

// The low rank alone; of an unchanged weight an empty delta. The only other error is that of FindNonFinite.
Result<EncodedWeight> EncodeWhitenedLowRank(ThreadPool& pool, const WeightPair& pair, const WeightInputs& inputs,
                                            size_t rank);

}  // namespace df

#endif  // DELTAFOLD_CODEC_WHITENED_H_
