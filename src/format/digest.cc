#include "format/digest.h"

#include <xxhash.h>

#include <algorithm>
#include <array>

#include "base/check.h"

namespace df {

struct Digest::State {
  State() : hash(XXH3_createState()) { DF_CHECK(hash != nullptr && XXH3_128bits_reset(hash) == XXH_OK); }
  ~State() { XXH3_freeState(hash); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  XXH3_state_t* hash;
};

Digest::Digest() : state_(std::make_unique<State>()) {}
Digest::Digest(Digest&&) noexcept = default;
Digest& Digest::operator=(Digest&&) noexcept = default;
Digest::~Digest() = default;

void Digest::AddNumber(uint64_t value) { XXH3_128bits_update(state_->hash, &value, sizeof(value)); }

void Digest::AddText(std::string_view text) {
  AddNumber(text.size());
  if (!text.empty()) XXH3_128bits_update(state_->hash, text.data(), text.size());
}

void Digest::AddTensorHead(std::string_view name, const TensorView& view) {
  AddText(name);
  AddText(DTypeName(view.dtype));
  AddNumber(view.shape.rank());
  for (const size_t dim : view.shape.dims()) AddNumber(dim);
}

void Digest::AddTensor(std::string_view name, const TensorView& view, const MappedFile* file) {
  constexpr size_t kPieceBytes = size_t{4}
                                 << 20;  // bounds the resident pages; large against the cost of giving them back
  AddTensorHead(name, view);
  for (size_t done = 0; done < view.bytes.size();) {
    const Bytes piece = view.bytes.subspan(done, std::min(kPieceBytes, view.bytes.size() - done));
    XXH3_128bits_update(state_->hash, piece.data(), piece.size());
    if (file != nullptr) file->DropPages(piece);
    done += piece.size();
  }
}

void Digest::AddBytes(Bytes bytes) {
  if (!bytes.empty()) XXH3_128bits_update(state_->hash, bytes.data(), bytes.size());
}

std::string Digest::Hex() const {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state_->hash));
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string hex;
  for (const unsigned char byte : canonical.digest) {
    hex += kDigits[byte >> 4];
    hex += kDigits[byte & 15];
  }
  return hex;
}

bool IsDigest(std::string_view text) {
  return text.size() == 32 &&
         std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

}  // namespace df
