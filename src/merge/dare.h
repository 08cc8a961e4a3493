// Drop and rescale (DARE: Yu et al., "Language Models are Super Mario", 2024): each entry of a task vector is kept with
// the probability of its density p and divided by p, so that its expectation is what it was.
//
//   dare_linear   W = W_b + lambda sum_i w_i D_i / p_i          D_i = m_i o (W_i - W_b), m_i in {0, 1}
//   dare_ties     of the w_i D_i / p_i only those with the sign of their sum (ties.h)
//
// normalize: true divides by the sum of the weights (dare_ties: of those that agree). Whether an entry is kept is a
// function of the seed, the tensor's name, the model's place and the entry's own: no thread or run changes it.
#ifndef DELTAFOLD_MERGE_DARE_H_
#define DELTAFOLD_MERGE_DARE_H_

#include "merge/method.h"

namespace df::merge {

// Errors as Merge.
Result<Report> MergeDareLinear(ThreadPool& pool, const TensorGroup& group, const Settings& settings, const Sink& sink);
Result<Report> MergeDareTies(ThreadPool& pool, const TensorGroup& group, const Settings& settings, const Sink& sink);

}  // namespace df::merge

#endif  // DELTAFOLD_MERGE_DARE_H_
