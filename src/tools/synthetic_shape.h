// Shapes of well-known models, for weights that are made up: bytes, sizes and time are those of the real thing.
#ifndef DELTAFOLD_TOOLS_SYNTHETIC_SHAPE_H_
#define DELTAFOLD_TOOLS_SYNTHETIC_SHAPE_H_

#include <string>
#include <string_view>
#include <vector>

#include "base/json_fwd.h"
#include "base/status.h"

namespace df::tools {

// Names, the real models' first; "small" and "wide" are for tests.
std::vector<std::string> SyntheticShapeNames();

// A config.json of that shape, to be read by ParseModelConfig. kInvalidArgument listing the names otherwise.
Result<Json> SyntheticConfig(std::string_view shape_name);

// Random weights are uniform in [-kSyntheticBound, kSyntheticBound): the variance keeps activations of order one
// through the layers of the smaller shapes.
inline constexpr float kSyntheticBound = 0.05078125F;  // 13 / 256, exact in bf16

}  // namespace df::tools

#endif  // DELTAFOLD_TOOLS_SYNTHETIC_SHAPE_H_
