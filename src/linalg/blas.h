// What every file here does before its first call of BLAS or LAPACK. Private to linalg/.
#ifndef DELTAFOLD_LINALG_BLAS_H_
#define DELTAFOLD_LINALG_BLAS_H_

#include <cblas.h>

#include "base/check.h"
#include "linalg/products.h"

namespace df::linalg {

// The system may resolve the library to a build with threads of its own: they would compete with ours. Once called,
// BLAS may be called from kMaxCallers threads at once.
void HoldBlasToOneThread();

inline int BlasInt(size_t value) {
  DF_CHECK(value <= kMaxDimension);
  return static_cast<int>(value);
}

}  // namespace df::linalg

#endif  // DELTAFOLD_LINALG_BLAS_H_
