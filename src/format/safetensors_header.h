// The JSON header of a safetensors file, read as events: 100 000 tensors cost their names and shapes, no document tree.
#ifndef DELTAFOLD_FORMAT_SAFETENSORS_HEADER_H_
#define DELTAFOLD_FORMAT_SAFETENSORS_HEADER_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tensor/tensor_view.h"

namespace df::internal {

struct TensorEntry {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  uint64_t begin_bytes = 0;  // from the start of the data
  uint64_t end_bytes = 0;
};

struct HeaderEntries {
  std::vector<TensorEntry> tensors;  // in the order of the JSON text
  std::map<std::string, std::string> metadata;
};

// Reads the JSON text: structure, types, known dtypes, rank, key duplicates inside an entry and in __metadata__.
// Offsets are not yet compared with anything. The only errors are kCorrupt and kUnsupported (dtype, rank).
Result<HeaderEntries> ParseHeaderJson(std::string_view text);

}  // namespace df::internal

#endif  // DELTAFOLD_FORMAT_SAFETENSORS_HEADER_H_
