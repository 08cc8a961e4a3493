// The rows of the target table that are about kernels/linear.h and packed.h.
#ifndef DELTAFOLD_TOOLS_LINEAR_ROWS_H_
#define DELTAFOLD_TOOLS_LINEAR_ROWS_H_

#include <string>
#include <vector>

#include "tensor/kernel_context.h"
#include "tools/row_set.h"

namespace df::tools {

// One weight matrix of a real model.
struct MatrixShape {
  std::string name;  // "llama-8b up 14336x4096"
  size_t d_out = 0;
  size_t d_in = 0;
};

// Speed rows of one shape on the context's threads: decode, prefill, packing. Weights rotate over more memory than the
// last-level cache and than 300 MB. At most a second a round.
std::vector<RowResult> MeasureLinearRows(KernelContext& context, const MatrixShape& shape,
                                         const RowSelection& selection, size_t n_rounds);

// lut_error, lut_error_outlier, exact_error: a variant's row in decode against f64, signs by that kernel; a sample a
// random row. The value is the largest one.
std::vector<RowResult> MeasureErrorRows(KernelContext& context, const RowSelection& selection, size_t n_rows);

}  // namespace df::tools

#endif  // DELTAFOLD_TOOLS_LINEAR_ROWS_H_
