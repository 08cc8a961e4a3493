#include "base/utf8.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>

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

// Of the valid character text[at, at + n).
uint32_t CodePoint(std::string_view text, size_t at, size_t n) {
  const auto lead = static_cast<uint8_t>(text[at]);
  uint32_t code = n == 1 ? lead : lead & (0x7FU >> n);
  for (size_t i = 1; i < n; ++i) code = (code << 6) | (static_cast<uint8_t>(text[at + i]) & 0x3FU);
  return code;
}

// Bytes of the valid character at text[at]; 0 where there is none.
size_t ValidCharacterBytes(std::string_view text, size_t at) {
  const auto lead = static_cast<uint8_t>(text[at]);
  const size_t n = CharacterBytes(lead);
  if (at + n > text.size()) return 0;
  for (size_t i = 1; i < n; ++i) {
    if (!ContinuesCharacter(lead, i, static_cast<uint8_t>(text[at + i]))) return 0;
  }
  return n;
}

struct Span {
  uint32_t first, last;
};

// Unicode's controls, format characters and spaces but U+0020, in order.
constexpr Span kUnseen[] = {{0x00, 0x1F},     {0x7F, 0xA0},     {0xAD, 0xAD},     {0x34F, 0x34F},    {0x61C, 0x61C},
                            {0x1680, 0x1680}, {0x180E, 0x180E}, {0x2000, 0x200F}, {0x2028, 0x202F},  {0x205F, 0x206F},
                            {0x3000, 0x3000}, {0xFEFF, 0xFEFF}, {0xFFF9, 0xFFFB}, {0xE0000, 0xE0FFF}};

bool IsUnseen(uint32_t code) {
  return std::ranges::any_of(kUnseen, [code](const Span& span) { return code >= span.first && code <= span.last; });
}

void AppendEscape(std::string_view character, uint32_t code, std::string& text) {
  if (code == '\n' || code == '\t' || code == '\r') {
    text += code == '\n' ? "\\n" : code == '\t' ? "\\t" : "\\r";
    return;
  }
  char escape[16] = "";
  const char* const form = character.empty() ? "\\x%02x" : code > 0xFFFF ? "\\U%08x" : "\\u%04x";
  std::snprintf(escape, sizeof(escape), form, code);
  text += escape;
}

}  // namespace

size_t UnseenBytes(std::string_view text, size_t at) {
  const size_t n = ValidCharacterBytes(text, at);
  if (n == 0) return 1;
  return IsUnseen(CodePoint(text, at, n)) ? n : 0;
}

std::string Escaped(std::string_view text) {
  std::string escaped;
  escaped.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const size_t n_valid = ValidCharacterBytes(text, at), n = std::max<size_t>(n_valid, 1);
    const uint32_t code = n_valid == 0 ? static_cast<uint8_t>(text[at]) : CodePoint(text, at, n);
    if (n_valid == 0 || IsUnseen(code)) {
      AppendEscape(text.substr(at, n_valid), code, escaped);
    } else {
      escaped += text.substr(at, n);
    }
    at += n;
  }
  return escaped;
}

bool IsValidUtf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const size_t n = ValidCharacterBytes(text, at);
    if (n == 0) return false;
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
