// The weighted mean of models (model soups: Wortsman et al., 2022).
//
//   W = sum_i w_i W_i / sum_i w_i        (normalize: false: without the division)
#ifndef DELTAFOLD_MERGE_LINEAR_H_
#define DELTAFOLD_MERGE_LINEAR_H_

#include "merge/method.h"

namespace df::merge {

// No base is looked at. Errors as Merge; weights that sum to 0 cannot be normalised.
Result<Report> MergeLinear(ThreadPool& pool, const TensorGroup& group, const Settings& settings, const Sink& sink);

}  // namespace df::merge

#endif  // DELTAFOLD_MERGE_LINEAR_H_
