// The mean of truncated task vectors (a soup of checkpoints with their noise cut off).
//
//   W = W_b + (1/k) sum_i SVD_r(W_i - W_b)       for matrices; other tensors: the plain mean of the differences
//
// SVD_r: the r leading terms of the singular value decomposition, r given, or the fewest that reach the share `energy`
// of the squares, for each task vector by itself.
#ifndef DELTAFOLD_MERGE_SVD_AVERAGE_H_
#define DELTAFOLD_MERGE_SVD_AVERAGE_H_

#include "merge/method.h"

namespace df::merge {

// Errors as Merge; a rank and an energy both, or neither.
Result<Report> MergeSvdAverage(ThreadPool& pool, const TensorGroup& group, const Settings& settings, const Sink& sink);

}  // namespace df::merge

#endif  // DELTAFOLD_MERGE_SVD_AVERAGE_H_
