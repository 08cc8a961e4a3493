// What a mistyped word may have meant.
#ifndef DELTAFOLD_CLI_NEAREST_H_
#define DELTAFOLD_CLI_NEAREST_H_

#include <string>
#include <string_view>
#include <vector>

namespace df::cli {

// The first of the words on offer that comes closest to `word`; empty when none is near.
std::string Nearest(std::string_view word, const std::vector<std::string>& offered);

}  // namespace df::cli

#endif  // DELTAFOLD_CLI_NEAREST_H_
