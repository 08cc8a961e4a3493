// The rows about LoRA adapters in kernels/linear.h.
#ifndef DELTAFOLD_TOOLS_ADAPTER_ROWS_H_
#define DELTAFOLD_TOOLS_ADAPTER_ROWS_H_

#include <vector>

#include "tools/linear_world.h"
#include "tools/row_set.h"

namespace df::tools {

// 8 decode rows of one adapter of rank 16, and of 8 adapters: time / 8 rows of the base.
std::vector<RowResult> MeasureAdapterRows(LinearWorld& world, const RowSelection& selection, size_t n_rounds);

}  // namespace df::tools

#endif  // DELTAFOLD_TOOLS_ADAPTER_ROWS_H_
