// Strict UTF-8 (RFC 3629: no overlong forms, no surrogates, at most U+10FFFF).
#ifndef DELTAFOLD_BASE_UTF8_H_
#define DELTAFOLD_BASE_UTF8_H_

#include <string_view>

namespace df {

bool IsValidUtf8(std::string_view text);

// Length of the longest prefix of `text` that does not end inside an unfinished (but so far valid) character.
size_t CompleteUtf8Prefix(std::string_view text);

}  // namespace df

#endif  // DELTAFOLD_BASE_UTF8_H_
