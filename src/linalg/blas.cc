#include "linalg/blas.h"

#include <dlfcn.h>

#include <mutex>

// OpenBLAS's serial builds (Debian's is one) take their work buffers from a table without a lock: of two threads that
// enter at once, both may get one buffer and spoil each other's product. The library calls this function by its dynamic
// symbol, so that this definition stands before its own; giving a buffer back needs no lock.
extern "C" void* blas_memory_alloc(int position) {
  using Alloc = void* (*)(int position);
  static const auto next = reinterpret_cast<Alloc>(dlsym(RTLD_NEXT, "blas_memory_alloc"));
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  return next(position);
}

namespace df::linalg {

void HoldBlasToOneThread() {
  static const bool held = (openblas_set_num_threads(1), true);
  DF_CHECK(held);
}

}  // namespace df::linalg
