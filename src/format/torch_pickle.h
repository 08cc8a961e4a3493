// torch.save of a dictionary of tensors, read as data: a zip archive of one pickle and the tensors' storages. The
// pickle is not run. A reader of its own takes the few opcodes and the few names that such a dictionary is made of
// (docs/formats/torch.md lists them); anything else is refused by name.
#ifndef DELTAFOLD_FORMAT_TORCH_PICKLE_H_
#define DELTAFOLD_FORMAT_TORCH_PICKLE_H_

#include <array>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "tensor/tensor_view.h"

namespace df {

inline constexpr size_t kMaxPickleBytes = size_t{16} << 20;  // of a 70B model's names and shapes 0.2 MB
inline constexpr size_t kMaxPickleValues = 1'000'000;

// A tensor over its storage. Every element that shape and strides speak of lies in it.
struct StridedTensor {
  std::string name = {};
  DType dtype = DType::kF32;
  Shape shape = {};
  std::array<uint64_t, Shape::kMaxRank> strides = {};  // in elements
  Bytes data = {};                                     // of the storage, from the first element on

  // In row-major order without gaps?
  bool IsContiguous() const;
  // The elements in row-major order: a part of `data` where IsContiguous, else written to `memory`, which is at least
  // elements * DTypeBytes long.
  TensorView View(MutableBytes memory) const;
};

// The dictionary in its order. Views lie in `file`. The only errors are those of ParseStoredZip, kCorrupt, kUnsupported
// (an opcode, a name or a storage type that no dictionary of plain tensors needs; big-endian data) and
// kResourceExhausted. Checks the CRC-32 of every entry it reads. Memory is in proportion to the pickle.
Result<std::vector<StridedTensor>> ParseTorchFile(Bytes file);

// The pickle alone. `storage` finds the bytes of a storage by its key; null: there is none.
class TorchStorages {
 public:
  virtual ~TorchStorages() = default;
  virtual const Bytes* FindOrNull(std::string_view key) const = 0;
};
Result<std::vector<StridedTensor>> ReadTorchPickle(Bytes pickle, const TorchStorages& storages);

}  // namespace df

#endif  // DELTAFOLD_FORMAT_TORCH_PICKLE_H_
