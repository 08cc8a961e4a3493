// The rows about kernels/attention.h: decode against reading keys and values, prefill against the multiply-add peak.
#ifndef DELTAFOLD_TOOLS_ATTENTION_ROWS_H_
#define DELTAFOLD_TOOLS_ATTENTION_ROWS_H_

#include <string>
#include <vector>

#include "tensor/kernel_context.h"
#include "tools/row_set.h"

namespace df::tools {

// Heads of a real model, and how long its sequences are. Keys and values are bf16.
struct AttentionShape {
  std::string name;  // "llama-8b"
  size_t n_heads = 0, n_kv_heads = 0, head_dim = 0;
  std::vector<size_t> decode_tokens = {512, 4096, 32'768};
  std::vector<size_t> prefill_tokens = {512, 2048};
  size_t window = 512;  // of the longest prefill, once more with it
};

// The sequences' blocks lie in no order in a cache that has room for 8 of the longest context, and rotate over it: 1.1
// GB for 8 heads of 128 and 32768 tokens.
std::vector<RowResult> MeasureAttentionRows(KernelContext& context, const AttentionShape& shape,
                                            const RowSelection& selection, size_t n_rounds);

}  // namespace df::tools

#endif  // DELTAFOLD_TOOLS_ATTENTION_ROWS_H_
