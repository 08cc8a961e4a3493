#include "linalg/products64.h"

#include <algorithm>

#include "linalg/blas.h"
#include "linalg/products.h"

namespace df::linalg {
namespace {

// Elements of a slice in f64: it stays in the second-level cache.
constexpr size_t kSliceElements = 32768;

int Stride(MatView<const double> a) { return BlasInt(std::max<size_t>(a.stride, 1)); }

void Multiply(CBLAS_TRANSPOSE turn_a, CBLAS_TRANSPOSE turn_b, MatView<const double> a, MatView<const double> b,
              size_t depth, MatView<double> c) {
  if (c.rows == 0 || c.cols == 0 || depth == 0) return;  // c is zeroed
  HoldBlasToOneThread();
  cblas_dgemm(CblasRowMajor, turn_a, turn_b, BlasInt(c.rows), BlasInt(c.cols), BlasInt(depth), 1.0, a.data, Stride(a),
              b.data, Stride(b), 0.0, c.data, Stride(c));
}

// Rows of c that one call of BLAS makes where threads share a product.
constexpr size_t kProductTile = 128;

}  // namespace

Mat<double> Product(MatView<const double> a, MatView<const double> b) {
  DF_CHECK(a.cols == b.rows);
  Mat<double> c(a.rows, b.cols);
  Multiply(CblasNoTrans, CblasNoTrans, a, b, a.cols, c.view());
  return c;
}

Mat<double> ProductTransposed(MatView<const double> a, MatView<const double> b) {
  DF_CHECK(a.cols == b.cols);
  Mat<double> c(a.rows, b.rows);
  Multiply(CblasNoTrans, CblasTrans, a, b, a.cols, c.view());
  return c;
}

Mat<double> TransposedProduct(MatView<const double> a, MatView<const double> b) {
  DF_CHECK(a.rows == b.rows);
  Mat<double> c(a.cols, b.cols);
  Multiply(CblasTrans, CblasNoTrans, a, b, a.rows, c.view());
  return c;
}

void Multiply(ThreadPool& pool, MatView<const double> a, MatView<const double> b, MatView<double> c) {
  DF_CHECK(a.cols == b.rows && a.cols > 0 && c.rows == a.rows && c.cols == b.cols);
  const size_t n_tiles = (c.rows + kProductTile - 1) / kProductTile;
  const size_t grain = std::max<size_t>((n_tiles + kMaxCallers - 1) / kMaxCallers, 1);
  pool.ParallelFor(n_tiles, grain, [&](size_t first, size_t last, size_t) {
    for (size_t tile = first; tile < last; ++tile) {
      const size_t begin = tile * kProductTile, end = std::min(begin + kProductTile, c.rows);
      Multiply(CblasNoTrans, CblasNoTrans, a.Rows(begin, end), b, a.cols, c.Rows(begin, end));
    }
  });
}

Mat<double> Gram(MatView<const float> a, GramOf side) {
  const bool of_columns = side == GramOf::kColumns;
  const size_t k = of_columns ? a.cols : a.rows, length = of_columns ? a.rows : a.cols;
  Mat<double> gram(k, k);
  if (k == 0 || length == 0) return gram;
  HoldBlasToOneThread();
  const size_t depth = std::clamp<size_t>(kSliceElements / k, 1, length);
  Mat<double> slice = of_columns ? Mat<double>(depth, k) : Mat<double>(k, depth);
  for (size_t begin = 0; begin < length; begin += depth) {
    const size_t n = std::min(depth, length - begin);
    for (size_t row = 0; row < (of_columns ? n : k); ++row) {
      const float* const from = of_columns ? a.Row(begin + row) : a.Row(row) + begin;
      std::copy_n(from, of_columns ? k : n, slice.Row(row));
    }
    cblas_dsyrk(CblasRowMajor, CblasUpper, of_columns ? CblasTrans : CblasNoTrans, BlasInt(k), BlasInt(n), 1.0,
                slice.Row(0), BlasInt(slice.cols()), 1.0, gram.Row(0), BlasInt(k));
  }
  for (size_t row = 0; row < k; ++row) {
    for (size_t col = 0; col < row; ++col) gram.Row(row)[col] = gram.Row(col)[row];
  }
  return gram;
}

}  // namespace df::linalg
