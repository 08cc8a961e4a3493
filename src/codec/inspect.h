// What is in there, and could it be served?
#ifndef DELTAFOLD_CODEC_INSPECT_H_
#define DELTAFOLD_CODEC_INSPECT_H_

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "format/checkpoint.h"
#include "tensor/tensor_view.h"

namespace df {

struct InspectedTensor {
  std::string name;
  std::string code;  // a CodeName, or the dtype of a plain tensor
  Shape shape;
  uint64_t bytes = 0;
};

struct Inspection {
  std::string kind;  // "safetensors file", "safetensors index", "model", "delta", "adapter", "config", "tokenizer"
  std::vector<std::pair<std::string, std::string>> facts;  // for people: ("vocabulary", "2048")
  std::vector<InspectedTensor> tensors;
  uint64_t bytes = 0;                  // of all tensors
  std::optional<uint64_t> full_bytes;  // of a full copy of the variant, for deltas and adapters
  Status problem;                      // why it is refused; Ok when it is sound
  Status lack;                         // what it needs besides to be served (a tokenizer); Ok when nothing

  bool IsServable() const { return problem.ok() && lack.ok(); }
};

// `path`: a safetensors file, a safetensors index, tokenizer.json, config.json, or the directory of a model, a delta or
// an adapter. With `base` (may be null) deltas and adapters are bound to it. Reads every byte that a digest covers,
// nothing else of the weights. Failures are `problem`, beside whatever was found before. A model without tokenizer.json
// is sound, a base to compress against, but cannot be served: that is its `lack`.
Inspection Inspect(const std::string& path, const Checkpoint* base);

}  // namespace df

#endif  // DELTAFOLD_CODEC_INSPECT_H_
