// An orthonormal basis of the leading part of a matrix held in memory, grown block by block for as long as its caller
// finds the share of the squares in it too small (Yu, Gu, Li, "Efficient randomized algorithms for the fixed-precision
// low-rank matrix approximation", SIAM J. Matrix Anal. Appl. 39, 2018).
//
//   Y = A W - Q B W, W [n, b] random signs;  Q_i = orth(Y)
//   power_iterations times:  Z = orth(A^T Q_i);  Q_i = orth(A Z - Q B Z)
//   Q = [Q, Q_i],  B = [B; Q_i^T A]
//
// so that |A - Q B|^2 = |A|^2 - |B|^2, and the leading singular values of A are those of B where Q holds them.
// randomized_svd.h is for a matrix that is not held, and a rank that is known.
#ifndef DELTAFOLD_LINALG_RANGE_FINDER_H_
#define DELTAFOLD_LINALG_RANGE_FINDER_H_

#include <cstdint>

#include "base/status.h"
#include "base/thread_pool.h"
#include "tensor/mat.h"

namespace df::linalg {

struct RangeOptions {
  size_t block = 64;  // columns added at a time
  size_t max_columns = 64;
  size_t power_iterations = 2;
  uint64_t seed = 0;
};

// Results depend on the matrix, the options and the processor's instruction set, not on the pool.
class RangeFinder {
 public:
  // `a` and `pool` must outlive it. Every dimension is above max_columns and at most kMaxDimension.
  RangeFinder(ThreadPool& pool, MatView<const float> a, const RangeOptions& options);

  // Adds a block, or what is left up to max_columns. Looks at A 2 + 2 power_iterations times and takes 4 m n block
  // (1 + power_iterations) FLOPs on all threads. Columns beyond the rank of A become 0. The only errors are
  // kInvalidArgument (A is not finite) and kInternal (LAPACK did not converge).
  Status Grow();

  size_t columns() const { return n_columns_; }
  bool is_full() const { return n_columns_ == q_.cols(); }
  MatView<const float> q() const { return {q_.Row(0), q_.rows(), n_columns_, q_.cols()}; }  // [m, columns()]
  MatView<const float> b() const { return b_.view().Rows(0, n_columns_); }                  // [columns(), n]

 private:
  MatView<float> NewColumns(size_t n) { return {q_.Row(0) + n_columns_, q_.rows(), n, q_.cols()}; }

  ThreadPool& pool_;
  MatView<const float> a_;
  RangeOptions options_;
  Mat<float> q_;  // [m, max_columns]
  Mat<float> b_;  // [max_columns, n]
  size_t n_columns_ = 0;
};

// Replaces y [m, n], n < m, by an orthonormal basis of its columns' span: the eigenvectors of y^T y, summed in f64,
// divided by the roots of their eigenvalues, twice. |Q^T Q - 1| is some 2^-22; directions that f32 does not tell from
// rounding (below 2^-24 of the largest) become columns of 0. Errors as RangeFinder::Grow.
Status OrthonormalizeByGram(ThreadPool& pool, MatView<float> y);

// An estimate of the sum of the fourth powers of a's singular values, |A^T A w|^2 in the mean over `n_probes` vectors w
// of random signs (Hutchinson, 1990): a relative deviation of some sqrt(2 / n_probes) where one value outweighs all,
// less otherwise.
double EstimateFourthPowers(ThreadPool& pool, MatView<const float> a, size_t n_probes, uint64_t seed);

}  // namespace df::linalg

#endif  // DELTAFOLD_LINALG_RANGE_FINDER_H_
