// What `--code auto` chose from, tensor by tensor, as delta_config.json keeps it ("tensors", docs/codes.md).
#ifndef DELTAFOLD_CLI_CHOICES_H_
#define DELTAFOLD_CLI_CHOICES_H_

#include <string>

#include "base/json_fwd.h"
#include "base/status.h"

namespace df::cli {

// A table: a line a code of a tensor with its bytes and error, the one that was chosen marked; a tensor whose code was
// given has that alone. `tensors` may come from a file of anybody's: what lacks a name, a code or bytes is kCorrupt,
// the only error.
Result<std::string> RenderChoices(const Json& tensors);

}  // namespace df::cli

#endif  // DELTAFOLD_CLI_CHOICES_H_
