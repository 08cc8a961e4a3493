// Views of raw bytes. `Bytes` never owns.
#ifndef DELTAFOLD_BASE_BYTES_H_
#define DELTAFOLD_BASE_BYTES_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <type_traits>

namespace df {

using Bytes = std::span<const uint8_t>;
using MutableBytes = std::span<uint8_t>;

inline Bytes AsBytes(std::string_view text) { return {reinterpret_cast<const uint8_t*>(text.data()), text.size()}; }

template <typename T>
  requires std::is_trivially_copyable_v<T>
Bytes AsBytes(std::span<const T> values) {
  return {reinterpret_cast<const uint8_t*>(values.data()), values.size_bytes()};
}

inline std::string_view AsText(Bytes bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

// Reads one T from possibly unaligned bytes (mapped files may be misaligned).
template <typename T>
  requires std::is_trivially_copyable_v<T>
T LoadUnaligned(const uint8_t* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

}  // namespace df

#endif  // DELTAFOLD_BASE_BYTES_H_
