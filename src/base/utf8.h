// Strict UTF-8 (RFC 3629: no overlong forms, no surrogates, at most U+10FFFF).
#ifndef DELTAFOLD_BASE_UTF8_H_
#define DELTAFOLD_BASE_UTF8_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace df {

bool IsValidUtf8(std::string_view text);

// Bytes of the character at text[at] where a terminal obeys it or nobody sees it: a control (DEL and C1 too), a space
// that looks like another or like nothing, a mark that joins or turns the direction of writing, a tag; 1 for a byte
// that is no UTF-8, 0 for all other characters, the plain space with them.
size_t UnseenBytes(std::string_view text, size_t at);

// `text` for one line of a terminal or log: unseen characters as "\n", "\t", "\u202e", "\U000e0041", bytes that are no
// UTF-8 as "\xff". All else as it is, backslashes too: for the eye, not to be read back.
std::string Escaped(std::string_view text);

// Length of the longest prefix of `text` that does not end inside an unfinished (but so far valid) character.
size_t CompleteUtf8Prefix(std::string_view text);

}  // namespace df

#endif  // DELTAFOLD_BASE_UTF8_H_
