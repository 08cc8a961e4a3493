// Private-use characters (U+E000 to U+F8FF): marks that travel through a rendering and are then taken out. Private to
// text/.
#ifndef DELTAFOLD_TEXT_PRIVATE_USE_H_
#define DELTAFOLD_TEXT_PRIVATE_USE_H_

#include <array>
#include <bitset>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace df {

inline constexpr char32_t kPrivateUseFirst = 0xE000;
inline constexpr size_t kPrivateUseCount = 0xF8FF - 0xE000 + 1;

// UTF-8 of a character from U+0800 to U+FFFF: always three bytes.
inline std::string PrivateUseText(char32_t character) {
  return {static_cast<char>(0xE0 | (character >> 12)), static_cast<char>(0x80 | ((character >> 6) & 0x3F)),
          static_cast<char>(0x80 | (character & 0x3F))};
}

// The private-use characters that occur in what it was shown.
class PrivateUseCensus {
 public:
  void Add(std::string_view text) {
    for (size_t i = 0; i + 3 <= text.size(); ++i) {
      const auto lead = static_cast<uint8_t>(text[i]);
      if (lead != 0xEE && lead != 0xEF) continue;
      const char32_t character = (char32_t{lead} & 0x0F) << 12 |
                                 (static_cast<uint8_t>(text[i + 1]) & char32_t{0x3F}) << 6 |
                                 (static_cast<uint8_t>(text[i + 2]) & char32_t{0x3F});
      if (character >= kPrivateUseFirst && character < kPrivateUseFirst + kPrivateUseCount) {
        seen_.set(character - kPrivateUseFirst);
      }
    }
  }
  void Add(char32_t character) { seen_.set(character - kPrivateUseFirst); }

  // One that has not been seen; nothing when all 6400 have.
  std::optional<char32_t> UnusedOrNull() const {
    for (size_t i = 0; i < kPrivateUseCount; ++i) {
      if (!seen_.test(i)) return kPrivateUseFirst + static_cast<char32_t>(i);
    }
    return std::nullopt;
  }

 private:
  std::bitset<kPrivateUseCount> seen_;
};

}  // namespace df

#endif  // DELTAFOLD_TEXT_PRIVATE_USE_H_
