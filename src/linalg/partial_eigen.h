// All eigenvalues of a symmetric matrix, and the eigenvectors of as many as are then wanted: a large matrix is made
// tridiagonal once (dsytrd), which costs most, and vectors beyond those wanted cost nothing.
#ifndef DELTAFOLD_LINALG_PARTIAL_EIGEN_H_
#define DELTAFOLD_LINALG_PARTIAL_EIGEN_H_

#include <functional>
#include <span>

#include "base/status.h"
#include "base/thread_pool.h"
#include "tensor/mat.h"

namespace df::linalg {

inline constexpr size_t kMaxPartialEigen = 30000;  // dstedc's workspace of n^2 + 4 n + 1 elements has 32-bit sizes

// Places [first, end) among the eigenvalues in ascending order.
struct EigenRange {
  size_t first = 0, end = 0;
};

struct PartialEigen {
  Buffer<double> values;  // [n] ascending, all
  EigenRange range;       // as it was chosen
  Mat<double> vectors;    // [end - first, n], row i belongs to values[first + i]; orthonormal to some n 2^-50
};

// Of a [n, n], 1 <= n <= kMaxPartialEigen, whose upper triangle is read; its memory is used up. `choose` is called once
// with the ascending values. Vectors of the tridiagonal form by relatively robust representations (dstemr), by divide
// and conquer where these fail; turned back on all threads. Memory: one n^2 f64 and twice the vectors. The result does
// not depend on the pool. The only errors are those of factor.h.
Result<PartialEigen> EigenOfSymmetric(ThreadPool& pool, Mat<double> a,
                                      const std::function<EigenRange(std::span<const double> values)>& choose);

}  // namespace df::linalg

#endif  // DELTAFOLD_LINALG_PARTIAL_EIGEN_H_
