// The row of the target table that is about a whole decode step: non_matrix_share.
#ifndef DELTAFOLD_TOOLS_STEP_ROWS_H_
#define DELTAFOLD_TOOLS_STEP_ROWS_H_

#include <memory>
#include <string>
#include <vector>

#include "model/weights.h"
#include "tools/row_set.h"

namespace df::tools {

// A step of one sequence with 512 tokens behind it (scheduling, model, drawing a token at temperature 1) against its
// matrix products alone, the head's among them, on the same weights.
std::vector<RowResult> MeasureStepRows(KernelContext& context, const std::shared_ptr<const BaseWeights>& base,
                                       const std::string& shape, const RowSelection& selection, size_t n_rounds);

}  // namespace df::tools

#endif  // DELTAFOLD_TOOLS_STEP_ROWS_H_
