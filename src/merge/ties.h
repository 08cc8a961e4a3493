// Trim, elect sign, disjoint mean (TIES: Yadav et al., 2023).
//
//   trim    of D_i = W_i - W_b the k = max(1, floor(density n)) entries of largest magnitude stay, the others become 0;
//           of equal magnitudes those of lower flat index stay
//   elect   with x_i = w_i D_i, an entry's sign is + where sum_i x_i >= 0, else -
//   merge   W = W_b + lambda sum x_i / sum w_i, both over the i whose x_i is not 0 and has that sign; a divisor of 0
//           counts as 1        (normalize: false: without the division)
#ifndef DELTAFOLD_MERGE_TIES_H_
#define DELTAFOLD_MERGE_TIES_H_

#include "merge/method.h"

namespace df::merge {

// Reads base and models up to four times: twice or three times for the cuts, once for the result. Errors as Merge.
Result<Report> MergeTies(ThreadPool& pool, const TensorGroup& group, const Settings& settings, const Sink& sink);

}  // namespace df::merge

#endif  // DELTAFOLD_MERGE_TIES_H_
