// The Rust border in C++ terms: buffers that free themselves and codes as Status. Private to text/.
#ifndef DELTAFOLD_TEXT_BORDER_H_
#define DELTAFOLD_TEXT_BORDER_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "dftext.h"

namespace df {

// Owns what a dft_ function wrote.
class RustBuffer {
 public:
  RustBuffer() = default;
  ~RustBuffer() { dft_buffer_free(&buffer_); }
  RustBuffer(const RustBuffer&) = delete;
  RustBuffer& operator=(const RustBuffer&) = delete;

  dft_buffer* out() { return &buffer_; }
  std::string_view text() const { return {reinterpret_cast<const char*>(buffer_.data), buffer_.size_bytes}; }

 private:
  dft_buffer buffer_ = {};
};

inline const uint8_t* RustBytes(std::string_view text) { return reinterpret_cast<const uint8_t*>(text.data()); }

Status RustStatus(dft_code code, const RustBuffer& error);

}  // namespace df

#endif  // DELTAFOLD_TEXT_BORDER_H_
