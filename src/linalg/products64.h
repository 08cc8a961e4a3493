// Products in f64: of small matrices, and the Gram matrices of long thin ones, whose entries would drown in f32.
#ifndef DELTAFOLD_LINALG_PRODUCTS64_H_
#define DELTAFOLD_LINALG_PRODUCTS64_H_

#include "base/thread_pool.h"
#include "tensor/mat.h"

namespace df::linalg {

// a b. a [m, k], b [k, n]. Without a pool these take one thread and are thread-safe; no errors; dimensions as in
// products.h.
Mat<double> Product(MatView<const double> a, MatView<const double> b);
// a b^T. a [m, k], b [n, k].
Mat<double> ProductTransposed(MatView<const double> a, MatView<const double> b);
// a^T b. a [k, m], b [k, n].
Mat<double> TransposedProduct(MatView<const double> a, MatView<const double> b);

// c = a b on all threads, in tiles of c's rows. a [m, k], k > 0, b [k, n], c [m, n], not aliasing.
void Multiply(ThreadPool& pool, MatView<const double> a, MatView<const double> b, MatView<double> c);

// The inner products of a's columns, a^T a [cols, cols], or of its rows, a a^T [rows, rows]: f32 elements, f64 products
// and sums. Takes 256 KiB of memory and, for k vectors of length n, n k (k + 1) FLOPs.
enum class GramOf { kColumns, kRows };
Mat<double> Gram(MatView<const float> a, GramOf side);

}  // namespace df::linalg

#endif  // DELTAFOLD_LINALG_PRODUCTS64_H_
