#include "base/populate_pages.h"

#include <sys/mman.h>
#include <unistd.h>

namespace df {

void PopulatePages(Bytes part) {
#ifdef MADV_POPULATE_READ
  if (part.empty()) return;
  const auto page_bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t begin = reinterpret_cast<uintptr_t>(part.data()) & ~(page_bytes - 1);
  const uintptr_t end = reinterpret_cast<uintptr_t>(part.data()) + part.size();
  // An error leaves the pages to be faulted in one by one, and those of a file that shrank to the signal's handler.
  static_cast<void>(madvise(reinterpret_cast<void*>(begin), end - begin, MADV_POPULATE_READ));
#else
  static_cast<void>(part);
#endif
}

}  // namespace df
