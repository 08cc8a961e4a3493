// The rows of the target table that are about kernels/linear.h and packed.h.
#ifndef DELTAFOLD_TOOLS_LINEAR_ROWS_H_
#define DELTAFOLD_TOOLS_LINEAR_ROWS_H_

#include <vector>

#include "tensor/kernel_context.h"
#include "tools/linear_world.h"
#include "tools/row_set.h"

namespace df::tools {

// Speed rows of the world's shape on its context's threads: decode, prefill, packing. At most a second a round.
std::vector<RowResult> MeasureLinearRows(LinearWorld& world, const RowSelection& selection, size_t n_rounds);

// lut_error, lut_error_outlier, exact_error: a variant's row in decode against f64, signs by that kernel; a sample a
// random row. The value is the largest one.
std::vector<RowResult> MeasureErrorRows(KernelContext& context, const RowSelection& selection, size_t n_rows);

}  // namespace df::tools

#endif  // DELTAFOLD_TOOLS_LINEAR_ROWS_H_
