// The rows about the kernels between products: norms, rotation, SwiGLU. Their numbers lie in the second-level cache,
// where a step leaves them, so they are set against reading there.
#ifndef DELTAFOLD_TOOLS_ELEMENT_ROWS_H_
#define DELTAFOLD_TOOLS_ELEMENT_ROWS_H_

#include <string>
#include <vector>

#include "tensor/kernel_context.h"
#include "tools/row_set.h"

namespace df::tools {

// 16 rows of a real model.
struct ElementShape {
  std::string name;  // "qwen3-0.6b"
  size_t d_model = 0, n_heads = 0, head_dim = 0, d_ff = 0;
};

// Reading as many bytes as a kernel reads and writes, from as much memory, over the kernel's time.
std::vector<RowResult> MeasureElementRows(KernelContext& context, const ElementShape& shape,
                                          const RowSelection& selection, size_t n_rounds);

}  // namespace df::tools

#endif  // DELTAFOLD_TOOLS_ELEMENT_ROWS_H_
