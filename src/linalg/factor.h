// Factorisations by LAPACK, of matrices that are held in memory.
//
// All take any finite matrix of at least one row and column, zero and rank-deficient ones too. The only errors are
// kInvalidArgument (no element, or one that is NaN or infinite), kUnsupported (a dimension that LAPACK's 32-bit sizes
// cannot hold) and kInternal (LAPACK did not converge, with its code). Thread-safe.
#ifndef DELTAFOLD_LINALG_FACTOR_H_
#define DELTAFOLD_LINALG_FACTOR_H_

#include "base/status.h"
#include "tensor/mat.h"

namespace df::linalg {

// a = u diag(s) vt, k = min(m, n).
struct Svd {
  Mat<float> u;     // [m, k] orthonormal columns
  Buffer<float> s;  // [k] not negative, descending
  Mat<float> vt;    // [k, n] orthonormal rows
};

// By divide and conquer (gesdd): |a - u s vt| <= c(m, n) 2^-24 s_0 with a modest c. Some 10 m n min(m, n) FLOPs on one
// thread, and three times a's memory beside the result.
Result<Svd> ExactSvd(MatView<const float> a);

// Replaces a [m, k], k <= m, by Q of its thin QR factorisation: orthonormal columns that span a's, and where a has less
// than full rank, more. By Householder reflections: |Q^T Q - 1| is some k 2^-24 whatever a is.
Status OrthonormalizeColumns(MatView<float> a);

// a = L L^T of a symmetric positive definite matrix [n, n], in place: L below and on the diagonal, zeros above it. By
// spotrf, one thread. kInvalidArgument besides when the matrix is not positive definite, naming the row.
Status Cholesky(MatView<float> a);

// b = b L^-T, row by row: solves x L^T = b. lower [n, n] as Cholesky leaves it, b [m, n]. No errors.
void SolveTransposedLower(MatView<const float> lower, MatView<float> b);
// b = b L^-1.
void SolveLower(MatView<const float> lower, MatView<float> b);

struct SymmetricEigen {
  Buffer<double> values;  // [n] ascending
  Mat<double> vectors;    // [n, n], row i belongs to values[i]; empty when not asked for
};

enum class EigenPart { kValues, kVectors };

// Of a symmetric matrix [n, n], n <= 30000; its upper triangle is read. By divide and conquer (syevd).
Result<SymmetricEigen> EigenOfSymmetric(MatView<const double> a, EigenPart part);

}  // namespace df::linalg

#endif  // DELTAFOLD_LINALG_FACTOR_H_
