// Any bytes as a safetensors file, and as the tensors of a delta: parsed, and read wherever the parser says yes.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "format/delta_tensors.h"
#include "format/safetensors.h"

namespace df {
namespace {

// Views must lie inside the file, or the next reader would leave it.
void CheckInside(Bytes file, const TensorView& view) {
  const Bytes data = view.bytes;
  if (data.empty()) return;
  if (data.data() < file.data() || data.data() + data.size() > file.data() + file.size()) std::abort();
}

void ReadAsDelta(const SafetensorsHeader& header) {
  internal::TensorMap tensors;
  for (const NamedTensor& tensor : header.tensors) tensors.emplace(tensor.name, StoredTensor{tensor.view});
  static_cast<void>(internal::ReadDeltaMetadata(header.metadata).ok());
  const auto weights = internal::CheckDeltaTensors(tensors);
  if (!weights.ok()) return;
  static_cast<void>(internal::ContentDigest(tensors));
  for (const std::string& weight : weights.value()) {
    // A base of the shape that the delta itself claims, and one of another shape.
    for (const ShapeOfWeight shape : {ShapeOfWeight{4, 8}, ShapeOfWeight{8, 4}}) {
      static_cast<void>(internal::LinearOf(tensors, weight, shape, shape.d_out).ok());
    }
    static_cast<void>(internal::VectorOf(tensors, weight, 8).ok());
  }
}

}  // namespace
}  // namespace df

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const df::Bytes file(data, size);
  const auto header = df::ParseSafetensors(file);
  if (!header.ok()) return 0;
  for (const df::NamedTensor& tensor : header.value().tensors) df::CheckInside(file, tensor.view);
  df::ReadAsDelta(header.value());
  return 0;
}
