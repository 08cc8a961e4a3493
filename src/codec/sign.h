// The one-bit code of a weight (BitDelta, arXiv:2402.10193, and its refinements): the sign of every difference and few
// scales.
//
//   D = f32(W_ft) - f32(W_base)                     [d_out, d_in]
//   D^ = sum_p diag(u_p) S_p diag(v_p),             S_p = sign(R_{p-1}), sign(0) = +1, R_0 = D, R_p = R_{p-1} - D^_p
//
//   kScalar  u_i v_j = mean |R|                     the least-squares scale for fixed signs
//   kRow     u_i = mean_j |R_ij|, v_j = 1           the same, row by row; zeros count, since a zero gets a sign too
//   kColumn  v_j = mean_i |R_ij|, u_i = 1           column by column
//   kRank1   |R| ~ u v^T, its top singular pair     non-negative, |u| = |v|; alternating least squares that starts from
//                                                   kRow's pair, so it is never worse
#ifndef DELTAFOLD_CODEC_SIGN_H_
#define DELTAFOLD_CODEC_SIGN_H_

#include "base/thread_pool.h"
#include "codec/codec.h"

namespace df {

enum class ScaleKind { kScalar, kRow, kColumn, kRank1 };

struct SignOptions {
  ScaleKind scale = ScaleKind::kRank1;
  size_t n_planes = 1;  // 1..kMaxPlanes
};

inline constexpr size_t kMaxPlanes = 8;

// Encodes `pair`; an unchanged weight gives an empty delta. Rows that only the fine-tune has (a grown vocabulary) get
// zero bits and scales and are the caller's to add; rows that only the base has are not looked at. Memory: n_planes *
// d_out * d_in / 8 bytes of signs, the scales, and at most 64 * d_in f64 for kColumn and kRank1: the residual is never
// stored but recomputed row by row. Reads both tensors once a plane and once for the quality (which one plane of
// kScalar or kRow gives by the way), for kRank1 some 5 times more a plane. The result depends on the tensors and
// options alone, not on `pool`. The only error is that of FindNonFinite.
Result<EncodedWeight> EncodeSign(ThreadPool& pool, const WeightPair& pair, SignOptions options);

}  // namespace df

#endif  // DELTAFOLD_CODEC_SIGN_H_
