#include "linalg/range_finder.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/rng.h"
#include "linalg/blas.h"
#include "linalg/factor.h"
#include "linalg/products.h"

namespace df::linalg {
namespace {

constexpr size_t kTileRows = 128;

Mat<float> RandomSigns(size_t rows, size_t cols, uint64_t seed) {
  Mat<float> w(rows, cols);
  for (size_t i = 0; i < rows * cols; ++i) w.Row(0)[i] = (RandomBits(seed, i / 64) >> (i % 64) & 1) != 0 ? 1.0F : -1.0F;
  return w;
}

// y^T y in f64, over parts of fixed borders.
Mat<double> ColumnGram(ThreadPool& pool, MatView<const float> y) {
  const size_t n_parts = std::min(kMaxCallers, (y.rows + kTileRows - 1) / kTileRows);
  std::vector<Mat<double>> sums(n_parts);
  pool.ParallelFor(n_parts, 1, [&](size_t begin, size_t end, size_t) {
    Mat<double> wide(kTileRows, y.cols);
    for (size_t part = begin; part < end; ++part) {
      sums[part] = Mat<double>(y.cols, y.cols);
      const size_t last = y.rows * (part + 1) / n_parts;
      for (size_t row = y.rows * part / n_parts; row < last; row += kTileRows) {
        const size_t n = std::min(kTileRows, last - row);
        for (size_t i = 0; i < n; ++i) std::copy_n(y.Row(row + i), y.cols, wide.Row(i));
        cblas_dgemm(CblasRowMajor, CblasTrans, CblasNoTrans, BlasInt(y.cols), BlasInt(y.cols), BlasInt(n), 1.0,
                    wide.Row(0), BlasInt(y.cols), wide.Row(0), BlasInt(y.cols), 1.0, sums[part].Row(0),
                    BlasInt(y.cols));
      }
    }
  });
  for (size_t part = 1; part < n_parts; ++part) {
    for (size_t i = 0; i < y.cols * y.cols; ++i) sums[0].Row(0)[i] += sums[part].Row(0)[i];
  }
  return std::move(sums[0]);
}

// y -= q (q^T y).
void RemoveSpan(ThreadPool& pool, MatView<const float> q, MatView<float> y) {
  if (q.cols == 0) return;
  Mat<float> inner(q.cols, y.cols);
  AddTransposedProduct(pool, q, y, inner.view());
  SubtractProduct(pool, q, inner.view(), y);
}

// One pass of OrthonormalizeByGram.
Status NormalizeOnce(ThreadPool& pool, MatView<float> y) {
  DF_CHECK(y.cols < y.rows);
  HoldBlasToOneThread();
  const Mat<double> gram = ColumnGram(pool, y);
  DF_ASSIGN_OR_RETURN(const SymmetricEigen eigen, EigenOfSymmetric(gram.view(), EigenPart::kVectors));
  const double least = eigen.values[y.cols - 1] * 0x1p-48;
  Mat<float> w(y.cols, y.cols);
  for (size_t k = 0; k < y.cols; ++k) {
    if (eigen.values[k] <= least) continue;
    const double scale = 1 / std::sqrt(eigen.values[k]);
    for (size_t j = 0; j < y.cols; ++j) w.Row(j)[k] = static_cast<float>(eigen.vectors.Row(k)[j] * scale);
  }
  Mat<float> product(y.rows, y.cols);
  Multiply(pool, y, w.view(), product.view());
  for (size_t row = 0; row < y.rows; ++row) std::copy_n(product.Row(row), y.cols, y.Row(row));
  return Status::Ok();
}

// An orthonormal basis of what of y's span is not in q's; the second round removes what rounding brought back.
Status OrthonormalizeAgainst(ThreadPool& pool, MatView<const float> q, MatView<float> y) {
  for (size_t round = 0; round < 2; ++round) {
    RemoveSpan(pool, q, y);
    DF_RETURN_IF_ERROR(NormalizeOnce(pool, y));
  }
  return Status::Ok();
}

}  // namespace

Status OrthonormalizeByGram(ThreadPool& pool, MatView<float> y) {
  DF_RETURN_IF_ERROR(NormalizeOnce(pool, y));
  return NormalizeOnce(pool, y);
}

RangeFinder::RangeFinder(ThreadPool& pool, MatView<const float> a, const RangeOptions& options)
    : pool_(pool), a_(a), options_(options), q_(a.rows, options.max_columns), b_(options.max_columns, a.cols) {
  DF_CHECK(options.max_columns < std::min(a.rows, a.cols) && std::max(a.rows, a.cols) <= kMaxDimension);
}

Status RangeFinder::Grow() {
  const size_t n = std::min(options_.block, q_.cols() - n_columns_);
  if (n == 0) return Status::Ok();
  const MatView<float> y = NewColumns(n);
  Mat<float> z = RandomSigns(a_.cols, n, RandomBits(options_.seed, n_columns_));
  Multiply(pool_, a_, z.view(), y);
  DF_RETURN_IF_ERROR(OrthonormalizeAgainst(pool_, q(), y));
  for (size_t i = 0; i < options_.power_iterations; ++i) {
    std::fill_n(z.Row(0), a_.cols * n, 0.0F);
    AddTransposedProduct(pool_, a_, y, z.view());
    DF_RETURN_IF_ERROR(OrthonormalizeByGram(pool_, z.view()));
    Multiply(pool_, a_, z.view(), y);
    DF_RETURN_IF_ERROR(OrthonormalizeAgainst(pool_, q(), y));
  }
  std::fill_n(z.Row(0), a_.cols * n, 0.0F);
  AddTransposedProduct(pool_, a_, y, z.view());
  for (size_t j = 0; j < a_.cols; ++j) {
    for (size_t k = 0; k < n; ++k) b_.Row(n_columns_ + k)[j] = z.Row(j)[k];
  }
  n_columns_ += n;
  return Status::Ok();
}

double EstimateFourthPowers(ThreadPool& pool, MatView<const float> a, size_t n_probes, uint64_t seed) {
  const Mat<float> w = RandomSigns(a.cols, n_probes, seed);
  Mat<float> y(a.rows, n_probes), z(a.cols, n_probes);
  Multiply(pool, a, w.view(), y.view());
  AddTransposedProduct(pool, a, y.view(), z.view());
  return SumOfSquares(z.view()) / static_cast<double>(n_probes);
}

}  // namespace df::linalg
