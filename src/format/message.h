// Names from untrusted files inside messages.
#ifndef DELTAFOLD_FORMAT_MESSAGE_H_
#define DELTAFOLD_FORMAT_MESSAGE_H_

#include <string>
#include <string_view>

namespace df {

// `name` in double quotes: control characters and broken UTF-8 escaped, at most about 120 bytes of it. Never fails.
std::string Quoted(std::string_view name);

}  // namespace df

#endif  // DELTAFOLD_FORMAT_MESSAGE_H_
