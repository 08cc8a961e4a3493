// The rows about --prefill-dtype bfloat16: prompts multiplied in pairs of bf16.
#ifndef DELTAFOLD_TOOLS_PREFILL_DTYPE_ROWS_H_
#define DELTAFOLD_TOOLS_PREFILL_DTYPE_ROWS_H_

#include <vector>

#include "tools/linear_world.h"
#include "tools/row_set.h"

namespace df::tools {

// prefill_bf16_share (128 rows of the base: share of the peak of bf16 dot products), prefill_bf16_speedup (their time
// in f32 / in bf16), prefill_bf16_variant_over_base_256. Without samples, saying why, where there are no such products.
std::vector<RowResult> MeasurePrefillDtypeRows(LinearWorld& world, const RowSelection& selection, size_t n_rounds);

}  // namespace df::tools

#endif  // DELTAFOLD_TOOLS_PREFILL_DTYPE_ROWS_H_
