// The rows about what an operator may choose: --sign-kernel and --batch-invariant.
#ifndef DELTAFOLD_TOOLS_OPTION_ROWS_H_
#define DELTAFOLD_TOOLS_OPTION_ROWS_H_

#include <vector>

#include "tools/linear_world.h"
#include "tools/row_set.h"

namespace df::tools {

// 1 and 8 decode rows of as many variants, signs by the exact or the lookup kernel / as `auto` chooses; the same rows,
// and 16 of one variant, batch-invariant / by cost.
std::vector<RowResult> MeasureOptionRows(LinearWorld& world, const RowSelection& selection, size_t n_rounds);

}  // namespace df::tools

#endif  // DELTAFOLD_TOOLS_OPTION_ROWS_H_
