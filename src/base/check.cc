#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace df::internal {

void CheckFailed(const char* file, int line, const char* condition) {
  std::fprintf(stderr, "deltafold: internal check failed at %s:%d: %s\n", file, line, condition);
  std::abort();
}

}  // namespace df::internal
