// format/: strict readers and writers of model files. Input: paths and untrusted bytes; output: views into mapped files
// and plain structs, or a Status that names file, tensor and numbers. Called by model/, codec/, store/ and the
// commands.
//
// safetensors, read strictly (docs/formats/safetensors.md): u64 LE header length <= 100 MB and <= file - 8; a JSON
// object that starts with '{', valid UTF-8, only trailing spaces; no duplicate keys; __metadata__ string -> string;
// known dtypes; rank <= 8; checked products; tensors cover the data exactly, without holes or overlap.
#ifndef DELTAFOLD_FORMAT_SAFETENSORS_H_
#define DELTAFOLD_FORMAT_SAFETENSORS_H_

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/atomic_file.h"
#include "base/mapped_file.h"
#include "base/status.h"
#include "tensor/tensor_view.h"

namespace df {

// The limit of the format's reference implementation.
inline constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;

struct NamedTensor {
  std::string name;
  TensorView view;
};

struct SafetensorsHeader {
  std::vector<NamedTensor> tensors;  // in file order; views into the bytes that were parsed
  std::map<std::string, std::string> metadata;
};

// Parses a whole file's bytes. The only errors are kCorrupt, kUnsupported (dtype, rank) and kResourceExhausted (header
// too large). Memory is in proportion to the header that is really there.
Result<SafetensorsHeader> ParseSafetensors(Bytes file);

// An open file; views live as long as it. Thread-safe after Open.
class SafetensorsFile {
 public:
  static Result<std::shared_ptr<const SafetensorsFile>> Open(const std::string& path);

  const std::vector<NamedTensor>& tensors() const { return header_.tensors; }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  const TensorView* FindOrNull(std::string_view name) const;
  const MappedFile& file() const { return *file_; }

 private:
  SafetensorsFile(std::unique_ptr<MappedFile> file, SafetensorsHeader header);

  std::unique_ptr<MappedFile> file_;
  SafetensorsHeader header_;
  std::vector<size_t> by_name_;  // indices into tensors, sorted by name
};

struct TensorSpec {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
};

// Where everything of a file stands.
struct SafetensorsLayout {
  std::string prefix;                 // length and header: everything before the data
  std::vector<uint64_t> begin_bytes;  // of each tensor's data, counted from the end of the prefix
  uint64_t data_bytes = 0;
};
// kInvalidArgument for names, shapes or metadata that no file can hold.
Result<SafetensorsLayout> LayOutSafetensors(const std::vector<TensorSpec>& specs,
                                            const std::map<std::string, std::string>& metadata);
// Makes `prefix` `size_bytes` long, a multiple of 64 and no less than it is, by blanks, which readers pass over.
void PadSafetensorsPrefix(uint64_t size_bytes, std::string& prefix);

// Writes a file front to back: the header is fixed at Create, the data of each tensor follows in the order of `specs`
// in pieces of any size. Appears under its name only after Commit. Writers order `specs` by descending element size so
// that every mapped tensor is aligned (the header is padded to 64 bytes).
class SafetensorsWriter {
 public:
  static Result<SafetensorsWriter> Create(const std::string& path, std::vector<TensorSpec> specs,
                                          const std::map<std::string, std::string>& metadata);
  // Appends to the current tensor, going on to the next when it is full.
  Status Write(Bytes data);
  // kInternal when data is missing.
  Status Commit();

 private:
  SafetensorsWriter(AtomicFile file, uint64_t data_bytes) : file_(std::move(file)), missing_bytes_(data_bytes) {}
  AtomicFile file_;
  uint64_t missing_bytes_;
};

}  // namespace df

#endif  // DELTAFOLD_FORMAT_SAFETENSORS_H_
