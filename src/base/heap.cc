#include "base/heap.h"

#include <cstdlib>  // names the C library

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace df {

void KeepLittleFreeMemory() {
#ifdef __GLIBC__
  constexpr int kBytes = 1 << 20;
  mallopt(M_MMAP_THRESHOLD, kBytes);
  mallopt(M_TRIM_THRESHOLD, kBytes);
#endif
}

void ReturnFreeMemory() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

}  // namespace df
