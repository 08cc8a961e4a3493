// A made-up family on disk: what compress, verify and serve are tried on without a download.
#ifndef DELTAFOLD_TOOLS_SYNTHETIC_FILES_H_
#define DELTAFOLD_TOOLS_SYNTHETIC_FILES_H_

#include <string>

#include "base/status.h"

namespace df::tools {

// Writes DIRECTORY/base, DIRECTORY/fine-tune (matrices differ from the base's by up to a fifth) and
// DIRECTORY/delta-0 ... delta-(n_deltas - 1) with random bits and scales; what exists is kept. The only errors are
// kInvalidArgument (unknown shape) and kIo.
Status WriteSyntheticFamily(const std::string& directory, const std::string& shape_name, size_t n_deltas);

}  // namespace df::tools

#endif  // DELTAFOLD_TOOLS_SYNTHETIC_FILES_H_
