// Codes fitted to the outputs on a calibration text (inputs.h): the signs stay those of the differences, the scales and
// low-rank factors are the best for what the weight is fed with. With R = D less all other parts of the delta and
// G = R C + W_ft E, what a part P of it minimises is  tr( P C P^T ) - 2 tr( G P^T ):
//
//   scalar   a = sum_ij S_ij G_ij / sum_i s_i^T C s_i
//   row      u_i = sum_j S_ij G_ij / s_i^T C s_i
//   column   v solves  ((S^T S) o C) v = diag(S^T G)                                (o: element by element)
//   rank-1   alternating least squares, six rounds from the pair of |D|:
//            u_i = (G P^T)_ii / (P C P^T)_ii with P = S diag(v);  v solves ((S^T diag(u^2) S) o C) v = diag((diag(u)
//            S)^T G)
//   planes   each in turn as above, two sweeps
//   low rank the truncated singular value decomposition of G L^-T, C = L L^T (whitened: the best of its rank)
//
// Without C (too large) rows are fitted by sums over tokens alone, u_i = sum_t y_ti z_ti / sum_t z_ti^2 with y = W_ft x
// - (W_ft - R) x^ and z = S diag(v) x^: for rank-1 with the v of |D|; scalars likewise, columns stay.
#ifndef DELTAFOLD_CODEC_CALIBRATE_H_
#define DELTAFOLD_CODEC_CALIBRATE_H_

#include "base/thread_pool.h"
#include "codec/codec.h"
#include "codec/inputs.h"

namespace df {

inline constexpr int kCalibrationRounds = 6;

// Replaces the scales of `encoded`'s planes, which EncodeSign made, by fitted ones. Row and column scales become BF16:
// half the bytes, and their rounding (2^-9) is far below what a sign leaves. A scale that the inputs say nothing about
// (a zero denominator) stays mean |D|'s. Measures anew. Memory: d_out d_in f32, and some MB a thread. The result does
// not depend on `pool`.
void CalibratePlanes(ThreadPool& pool, const WeightPair& pair, const WeightInputs& inputs, EncodedWeight& encoded);

// StoredBytes once CalibratePlanes has fitted `delta`.
uint64_t FittedBytes(const LinearDelta& delta);

}  // namespace df

#endif  // DELTAFOLD_CODEC_CALIBRATE_H_
