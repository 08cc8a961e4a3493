// Mapping many pages at once.
#ifndef DELTAFOLD_BASE_POPULATE_PAGES_H_
#define DELTAFOLD_BASE_POPULATE_PAGES_H_

#include "base/bytes.h"

namespace df {

// Maps the pages that `part` of a mapped file lies in, reading from the disk what is not in memory: one call costs less
// than the faults of touching them. Of other memory, or where the system cannot, nothing that can be seen happens.
void PopulatePages(Bytes part);

}  // namespace df

#endif  // DELTAFOLD_BASE_POPULATE_PAGES_H_
