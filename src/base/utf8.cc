#include "base/utf8.h"

#include <cstddef>
#include <cstdint>

namespace df {
namespace {

// Bytes of the character that `lead` opens; 0 for a byte that cannot open one.
size_t CharacterBytes(uint8_t lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return 2;
  if (lead >= 0xE0 && lead <= 0xEF) return 3;
  if (lead >= 0xF0 && lead <= 0xF4) return 4;
  return 0;
}

// Is `byte` allowed at position `index` >= 1 of a character opened by `lead`?
bool ContinuesCharacter(uint8_t lead, size_t index, uint8_t byte) {
  if (index > 1) return byte >= 0x80 && byte <= 0xBF;
  switch (lead) {
    case 0xE0: return byte >= 0xA0 && byte <= 0xBF;
    case 0xED: return byte >= 0x80 && byte <= 0x9F;
    case 0xF0: return byte >= 0x90 && byte <= 0xBF;
    case 0xF4: return byte >= 0x80 && byte <= 0x8F;
    default: return byte >= 0x80 && byte <= 0xBF;
  }
}

}  // namespace

bool IsValidUtf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const auto lead = static_cast<uint8_t>(text[at]);
    const size_t n = CharacterBytes(lead);
    if (n == 0 || at + n > text.size()) return false;
    for (size_t i = 1; i < n; ++i) {
      if (!ContinuesCharacter(lead, i, static_cast<uint8_t>(text[at + i]))) return false;
    }
    at += n;
  }
  return true;
}

size_t CompleteUtf8Prefix(std::string_view text) {
  // An unfinished character has at most 3 bytes so far.
  for (size_t back = 1; back <= 3 && back <= text.size(); ++back) {
    const size_t start = text.size() - back;
    const auto lead = static_cast<uint8_t>(text[start]);
    if (lead >= 0x80 && lead <= 0xBF) continue;
    if (CharacterBytes(lead) <= back) return text.size();
    for (size_t i = 1; i < back; ++i) {
      if (!ContinuesCharacter(lead, i, static_cast<uint8_t>(text[start + i]))) return text.size();
    }
    return start;
  }
  return text.size();
}

}  // namespace df
