// The rows about a model's two ends: rows of the embedding, the head over a large vocabulary, and what is done with its
// logits.
#ifndef DELTAFOLD_TOOLS_HEAD_ROWS_H_
#define DELTAFOLD_TOOLS_HEAD_ROWS_H_

#include <string>
#include <vector>

#include "kernels/linear.h"
#include "tensor/kernel_context.h"
#include "tools/row_set.h"

namespace df::tools {

// One row of the head against reading it; drawing a token (greedily, by top-k, by top-p) and the 20 likeliest tokens'
// log-probabilities as shares of head and draw together; 512 rows of the same matrix as an embedding. `head` [vocab,
// d_model] lies in tiles.
std::vector<RowResult> MeasureHeadRows(KernelContext& context, const kernels::LinearWeight& head,
                                       const std::string& shape, const RowSelection& selection, size_t n_rounds);

}  // namespace df::tools

#endif  // DELTAFOLD_TOOLS_HEAD_ROWS_H_
