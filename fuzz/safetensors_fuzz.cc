// Any bytes as a safetensors file: parsed or refused, never read outside of the input.
#include <algorithm>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "format/safetensors.h"

namespace {

void ParseAndTouch(df::Bytes file) {
  const auto header = df::ParseSafetensors(file);
  if (!header.ok()) {
    DF_CHECK(!header.status().message().empty());
    return;
  }
  size_t data_bytes = 0;
  unsigned sum = 0;
  for (const df::NamedTensor& tensor : header->tensors) {
    DF_CHECK(tensor.view.shape.TryElements() == tensor.view.elements());
    data_bytes += tensor.view.bytes.size();
    if (!tensor.view.bytes.empty()) sum += tensor.view.bytes.front() + tensor.view.bytes.back();
  }
  DF_CHECK(data_bytes < file.size() && sum < 512 * file.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ParseAndTouch({data, size});
  if (size < sizeof(uint64_t)) return 0;
  // The same with a length that fits the text, which mutations seldom find.
  std::vector<uint8_t> fitted(data, data + size);
  const auto end = std::find(fitted.rbegin(), fitted.rend() - sizeof(uint64_t), '}').base();
  const auto header_bytes = static_cast<uint64_t>(end - fitted.begin()) - sizeof(uint64_t);
  std::memcpy(fitted.data(), &header_bytes, sizeof(header_bytes));
  ParseAndTouch(fitted);
  return 0;
}
