// XXH3-128 digests of named tensors and texts, streamed: every item is framed by its lengths, so no two sequences of
// items give the same byte stream. Written as 32 lower-case hex digits, most significant first.
#ifndef DELTAFOLD_FORMAT_DIGEST_H_
#define DELTAFOLD_FORMAT_DIGEST_H_

#include <memory>
#include <string>
#include <string_view>

#include "base/mapped_file.h"
#include "tensor/tensor_view.h"

namespace df {

// Thread-compatible.
class Digest {
 public:
  Digest();
  Digest(Digest&&) noexcept;
  Digest& operator=(Digest&&) noexcept;
  ~Digest();

  // u64 length, bytes.
  void AddText(std::string_view text);
  // Name and dtype as texts, u64 rank, u64 dimensions, then the data without a length (the shape gives it). With
  // `file`, the mapped pages are given back behind the reading.
  void AddTensor(std::string_view name, const TensorView& view, const MappedFile* file);

  // What AddTensor adds before the data; `view` needs dtype and shape alone.
  void AddTensorHead(std::string_view name, const TensorView& view);
  // The bytes alone: for data whose length is told otherwise.
  void AddBytes(Bytes bytes);

  std::string Hex() const;

 private:
  void AddNumber(uint64_t value);

  struct State;
  std::unique_ptr<State> state_;
};

// 32 lower-case hex digits?
bool IsDigest(std::string_view text);

}  // namespace df

#endif  // DELTAFOLD_FORMAT_DIGEST_H_
