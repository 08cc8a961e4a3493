// Any bytes as a pickle of torch.save, and as the zip archive around one: refused, or tensors that lie in their
// storages.
#include <vector>

#include "base/check.h"
#include "format/stored_zip.h"
#include "format/torch_pickle.h"

namespace {

// Every key names these bytes: pickles get further than with none.
class AnyStorage final : public df::TorchStorages {
 public:
  explicit AnyStorage(df::Bytes bytes) : bytes_(bytes) {}
  const df::Bytes* FindOrNull(std::string_view) const override { return &bytes_; }

 private:
  df::Bytes bytes_;
};

void ReadAll(const std::vector<df::StridedTensor>& tensors) {
  unsigned sum = 0;
  for (const df::StridedTensor& tensor : tensors) {
    const size_t n_bytes = *tensor.shape.TryElements() * df::DTypeBytes(tensor.dtype);
    DF_CHECK(n_bytes <= tensor.data.size());
    std::vector<uint8_t> memory(n_bytes);
    for (const uint8_t byte : tensor.View(memory).bytes) sum += byte;
  }
  DF_CHECK(sum < ~0U);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::vector<uint8_t> storage(24, 1);
  const auto pickled = df::ReadTorchPickle({data, size}, AnyStorage(storage));
  if (pickled.ok()) ReadAll(*pickled);
  const auto entries = df::ParseStoredZip({data, size});
  if (!entries.ok()) return 0;
  for (const df::ZipEntry& entry : *entries) {
    DF_CHECK(entry.data.empty() || (entry.data.data() >= data && entry.data.data() + entry.data.size() <= data + size));
    // Most mutations break the checksum; the pickle is read all the same.
    const auto inner = df::ReadTorchPickle(entry.data, AnyStorage(storage));
    if (inner.ok()) ReadAll(*inner);
  }
  const auto file = df::ParseTorchFile({data, size});
  if (file.ok()) ReadAll(*file);
  return 0;
}
