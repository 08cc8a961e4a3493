// The leading part of the singular value decomposition of a large matrix, by random projection (Halko, Martinsson,
// Tropp, "Finding structure with randomness", SIAM Review 53, 2011: algorithms 4.4 and 5.1).
//
//   Y = A W, W [n, l] Gaussian, l = rank + oversampling;  Q = orth(Y)
//   power_iterations times:  Z = orth(A^T Q);  Q = orth(A Z)
//   Q^T A = (small SVD);  U = Q U_small, cut to `rank`
//
// With q power iterations and p of oversampling the error of the subspace is in the mean at most (corollary 10.10)
//   E |A - Q Q^T A| <= [ (1 + sqrt(k/(p-1))) s_{k+1}^(2q+1) + e sqrt(k+p)/p (sum_{j>k} s_j^(2(2q+1)))^(1/2)
//   ]^(1/(2q+1))
// and cutting to k values adds at most s_{k+1} (theorem 9.3).
#ifndef DELTAFOLD_LINALG_RANDOMIZED_SVD_H_
#define DELTAFOLD_LINALG_RANDOMIZED_SVD_H_

#include <cstdint>
#include <functional>

#include "base/status.h"
#include "base/thread_pool.h"
#include "linalg/factor.h"

namespace df::linalg {

// A matrix that is made in blocks of rows whenever it is looked at, and never held.
struct RowSource {
  size_t rows = 0;
  size_t cols = 0;
  // Writes rows [first, first + out.rows) into out [., cols]; the same values each time. Called by several threads at
  // once; `thread` is below the pool's number and numbers the caller's memory.
  std::function<void(size_t first, MatView<float> out, size_t thread)> read = {};
};

// A matrix in memory; it must outlive the source.
RowSource RowsOf(MatView<const float> a);

struct RandomizedSvdOptions {
  size_t rank = 1;  // cut to min(rows, cols)
  size_t oversampling = 10;
  size_t power_iterations = 2;
  uint64_t seed = 0;
};

struct TruncatedSvd {
  Svd svd;                    // of the leading `rank` values
  double sum_of_squares = 0;  // of A, in f64: |A - u s vt|^2 is this less the squares of s, if the subspace is exact
};

// Looks at A 2 + 2 power_iterations times and takes 4 rows cols l (1 + power_iterations) FLOPs, split over the threads.
// Memory beside the result: some 3 (rows + cols) l f32, 8 MiB of rows a thread, and at most rows cols / 2 f32 of
// partial sums. The result depends on A, the options and the processor's instruction set, not on `pool`. The only
// errors are those of factor.h.
Result<TruncatedSvd> RandomizedSvd(ThreadPool& pool, const RowSource& a, const RandomizedSvdOptions& options);

}  // namespace df::linalg

#endif  // DELTAFOLD_LINALG_RANDOMIZED_SVD_H_
