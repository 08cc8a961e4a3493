// Sums of task vectors (Ilharco et al., "Editing Models with Task Arithmetic", 2023).
//
//   W = W_b + lambda sum_i w_i (W_i - W_b)        (normalize: true: divided by sum_i w_i where that is not below 1e-8)
#ifndef DELTAFOLD_MERGE_TASK_ARITHMETIC_H_
#define DELTAFOLD_MERGE_TASK_ARITHMETIC_H_

#include "merge/method.h"

namespace df::merge {

// Errors as Merge.
Result<Report> MergeTaskArithmetic(ThreadPool& pool, const TensorGroup& group, const Settings& settings,
                                   const Sink& sink);

}  // namespace df::merge

#endif  // DELTAFOLD_MERGE_TASK_ARITHMETIC_H_
