// Rows of bytes: the difference of each changed row in 8 bits, for embeddings and heads of which many rows changed.
//
//   D^_i = step_i q_i,   step_i = max_j |D_ij| / 127,   q_ij = D_ij / step_i rounded to the nearest even
//
// The error of an entry is at most step_i / 2: of a Gaussian row of 4096 some 1 % of it. A quarter of the bytes of f32
// rows, half of bf16, four times those of two planes of signs. A row that the base lacks is coded against zero.
#ifndef DELTAFOLD_CODEC_BYTE_ROWS_H_
#define DELTAFOLD_CODEC_BYTE_ROWS_H_

#include "base/thread_pool.h"
#include "codec/codec.h"

namespace df {

// Unchanged rows are not stored. Memory: k d_in bytes. The only error is that of FindNonFinite.
Result<EncodedWeight> EncodeByteRows(ThreadPool& pool, const WeightPair& pair);

}  // namespace df

#endif  // DELTAFOLD_CODEC_BYTE_ROWS_H_
