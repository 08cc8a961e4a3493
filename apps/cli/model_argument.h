// What stands for a model on the command line: a directory, or a hub id found in the local cache.
#ifndef DELTAFOLD_CLI_MODEL_ARGUMENT_H_
#define DELTAFOLD_CLI_MODEL_ARGUMENT_H_

#include <string>

#include "base/status.h"

namespace df::cli {

struct ModelArgument {
  std::string directory;
  std::string name;  // for people: the hub id, or the directory's own name, never a path
};

// The only errors are those of ResolveModelDirectory.
Result<ModelArgument> ResolveModel(const std::string& argument);

}  // namespace df::cli

#endif  // DELTAFOLD_CLI_MODEL_ARGUMENT_H_
