// One checkpoint, its task vector's tail damped ("MonoSoup": a model soup from a single model).
//
//   D = W_1 - W_b = U s V^T;  k: the fewest leading values with P = sum_{i <= k} s_i^2 / sum s^2 >= energy, or
//   ceil(exp(H(s / sum s))), H the entropy (effective rank: Roy and Vetterli, 2007)
//   rho = (s_{k+1} / s_1)^2, 0 where k is full;  c = sqrt(1 - P)
//   low = clamp(rho + (1 - rho) c, 0, 1), high = 1 - low
//   W = W_b + high D_k + low (D - D_k)
//
// Tensors that are no matrices and those with |D| < 1e-6 |W_b| are the checkpoint's own. Of several checkpoints D is
// the mean of their task vectors, edited once (and for those tensors W_b + D).
#ifndef DELTAFOLD_MERGE_MONOSOUP_H_
#define DELTAFOLD_MERGE_MONOSOUP_H_

#include "merge/method.h"

namespace df::merge {

// Errors as Merge.
Result<Report> MergeMonosoup(ThreadPool& pool, const TensorGroup& group, const Settings& settings, const Sink& sink);

}  // namespace df::merge

#endif  // DELTAFOLD_MERGE_MONOSOUP_H_
