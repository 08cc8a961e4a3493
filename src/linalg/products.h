// linalg/: dense linear algebra on row-major f32 matrices, over BLAS and LAPACK. Input: views, or a source of rows for
// what does not fit; output: products (this file), factorisations (factor.h), the leading part of a singular value
// decomposition (randomized_svd.h). Called by codec/ and merge/, offline.
//
// BLAS is held to one thread: parallel work is ours, in parts of fixed borders, so that a result depends on the
// matrices and on the processor's instruction set, never on the number of threads.
#ifndef DELTAFOLD_LINALG_PRODUCTS_H_
#define DELTAFOLD_LINALG_PRODUCTS_H_

#include "base/thread_pool.h"
#include "tensor/mat.h"

namespace df::linalg {

// Sizes are BLAS's 32-bit integers: every dimension and stride is at most this.
inline constexpr size_t kMaxDimension = INT32_MAX;
// BLAS keeps some 50 buffers for callers at once: what multiplies on several threads takes no more than these.
inline constexpr size_t kMaxCallers = 32;

// c = a b. a [m, k], b [k, n], c [m, n], not aliasing. Thread-safe. Each element's error is at most k 2^-24 times the
// same sum over absolute values.
void Multiply(MatView<const float> a, MatView<const float> b, MatView<float> c);
// c += a^T b. a [k, m], b [k, n], c [m, n].
void AddTransposedProduct(MatView<const float> a, MatView<const float> b, MatView<float> c);
// c -= a b. a [m, k], b [k, n], c [m, n].
void SubtractProduct(MatView<const float> a, MatView<const float> b, MatView<float> c);
// c += a b. a [m, k], b [k, n], c [m, n].
void AddProduct(MatView<const float> a, MatView<const float> b, MatView<float> c);
// c += a b^T. a [m, k], b [n, k], c [m, n].
void AddProductTransposed(MatView<const float> a, MatView<const float> b, MatView<float> c);

// c += a^T b on all threads, in tiles of c's rows. a [k, m], b [k, n], c [m, n].
void AddTransposedProduct(ThreadPool& pool, MatView<const float> a, MatView<const float> b, MatView<float> c);

// c = a b on all threads, in tiles of c's rows. a [m, k], b [k, n], c [m, n].
void Multiply(ThreadPool& pool, MatView<const float> a, MatView<const float> b, MatView<float> c);
// c -= a b and, b [n, k], c += a b^T in the same way.
void SubtractProduct(ThreadPool& pool, MatView<const float> a, MatView<const float> b, MatView<float> c);
void AddProductTransposed(ThreadPool& pool, MatView<const float> a, MatView<const float> b, MatView<float> c);

// a a^T or a^T a, whichever is smaller, in f64: [k, k] with k = min(rows, cols). Its eigenvalues are the squares of a's
// singular values; those below 1e-8 of the largest drown. Tiles of the result are the threads' parts.
Mat<double> Gram(ThreadPool& pool, MatView<const float> a);

// Sum of the squares in f64; NaN or infinite where an element is.
double SumOfSquares(MatView<const float> a);

}  // namespace df::linalg

#endif  // DELTAFOLD_LINALG_PRODUCTS_H_
