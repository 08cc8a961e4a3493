// Writes a synthetic family of a real model's shape (src/tools/synthetic_files.h).
//
//   synthetic_family OUT SHAPE N_DELTAS     SHAPE: small and wide (tests), qwen3-0.6b ...
#include <cstdio>
#include <cstdlib>

#include "tools/synthetic_files.h"

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: synthetic_family OUT SHAPE N_DELTAS\n");
    return 2;
  }
  const df::Status status = df::tools::WriteSyntheticFamily(argv[1], argv[2], std::strtoul(argv[3], nullptr, 10));
  if (!status.ok()) std::fprintf(stderr, "synthetic_family: %s\n", status.message().c_str());
  return status.ok() ? 0 : 1;
}
