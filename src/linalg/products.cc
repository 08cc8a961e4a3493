#include "linalg/products.h"

#include <algorithm>
#include <vector>

#include "linalg/blas.h"

namespace df::linalg {
namespace {

int Stride(MatView<const float> a) { return BlasInt(std::max<size_t>(a.stride, 1)); }

// A tile of the Gram matrix: 512 x 512 f64 are 2 MiB, and so is each of the two slices that make it.
constexpr size_t kGramTile = 512;
constexpr size_t kGramDepth = 512;

// Rows [first, first + rows) of the smaller side, elements [begin, begin + depth) along the larger one, in f64.
void ReadSlice(MatView<const float> a, bool along_rows, size_t first, size_t begin, MatView<double> slice) {
  for (size_t i = 0; i < slice.rows; ++i) {
    double* to = slice.Row(i);
    for (size_t k = 0; k < slice.cols; ++k) {
      to[k] = along_rows ? a.Row(first + i)[begin + k] : a.Row(begin + k)[first + i];
    }
  }
}

// Rows of c that one call of BLAS makes where threads share a product.
constexpr size_t kProductTile = 128;

// visit(begin, end) for tiles of rows on all threads, as many at once as BLAS takes.
template <typename Visit>
void ForEachTile(ThreadPool& pool, size_t rows, const Visit& visit) {
  HoldBlasToOneThread();
  const size_t n_tiles = (rows + kProductTile - 1) / kProductTile;
  const size_t grain = std::max<size_t>((n_tiles + kMaxCallers - 1) / kMaxCallers, 1);
  pool.ParallelFor(n_tiles, grain, [&](size_t first, size_t last, size_t) {
    for (size_t tile = first; tile < last; ++tile) {
      visit(tile * kProductTile, std::min((tile + 1) * kProductTile, rows));
    }
  });
}

struct GramTile {
  size_t row = 0, col = 0;  // first of each
};

void FillGramTile(MatView<const float> a, bool along_rows, const GramTile& tile, MatView<double> gram) {
  const size_t depth = along_rows ? a.cols : a.rows;
  const size_t n_rows = std::min(kGramTile, gram.rows - tile.row), n_cols = std::min(kGramTile, gram.cols - tile.col);
  Mat<double> left(n_rows, kGramDepth), right(n_cols, kGramDepth);
  double* out = gram.Row(tile.row) + tile.col;
  for (size_t begin = 0; begin < depth; begin += kGramDepth) {
    const size_t n = std::min(kGramDepth, depth - begin);
    ReadSlice(a, along_rows, tile.row, begin, {left.Row(0), n_rows, n, kGramDepth});
    ReadSlice(a, along_rows, tile.col, begin, {right.Row(0), n_cols, n, kGramDepth});
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, BlasInt(n_rows), BlasInt(n_cols), BlasInt(n), 1.0, left.Row(0),
                BlasInt(kGramDepth), right.Row(0), BlasInt(kGramDepth), begin == 0 ? 0.0 : 1.0, out,
                BlasInt(gram.stride));
  }
}

}  // namespace

void Multiply(MatView<const float> a, MatView<const float> b, MatView<float> c) {
  DF_CHECK(a.cols == b.rows && c.rows == a.rows && c.cols == b.cols);
  if (c.rows == 0 || c.cols == 0) return;
  HoldBlasToOneThread();
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, BlasInt(c.rows), BlasInt(c.cols), BlasInt(a.cols), 1.0F,
              a.data, Stride(a), b.data, Stride(b), 0.0F, c.data, Stride(c));
}

void AddTransposedProduct(MatView<const float> a, MatView<const float> b, MatView<float> c) {
  DF_CHECK(a.rows == b.rows && c.rows == a.cols && c.cols == b.cols);
  if (c.rows == 0 || c.cols == 0 || a.rows == 0) return;
  HoldBlasToOneThread();
  cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, BlasInt(c.rows), BlasInt(c.cols), BlasInt(a.rows), 1.0F, a.data,
              Stride(a), b.data, Stride(b), 1.0F, c.data, Stride(c));
}

void SubtractProduct(MatView<const float> a, MatView<const float> b, MatView<float> c) {
  DF_CHECK(a.cols == b.rows && c.rows == a.rows && c.cols == b.cols);
  if (c.rows == 0 || c.cols == 0 || a.cols == 0) return;
  HoldBlasToOneThread();
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, BlasInt(c.rows), BlasInt(c.cols), BlasInt(a.cols), -1.0F,
              a.data, Stride(a), b.data, Stride(b), 1.0F, c.data, Stride(c));
}

void AddProduct(MatView<const float> a, MatView<const float> b, MatView<float> c) {
  DF_CHECK(a.cols == b.rows && c.rows == a.rows && c.cols == b.cols);
  if (c.rows == 0 || c.cols == 0 || a.cols == 0) return;
  HoldBlasToOneThread();
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, BlasInt(c.rows), BlasInt(c.cols), BlasInt(a.cols), 1.0F,
              a.data, Stride(a), b.data, Stride(b), 1.0F, c.data, Stride(c));
}

void AddProductTransposed(MatView<const float> a, MatView<const float> b, MatView<float> c) {
  DF_CHECK(a.cols == b.cols && c.rows == a.rows && c.cols == b.rows);
  if (c.rows == 0 || c.cols == 0 || a.cols == 0) return;
  HoldBlasToOneThread();
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, BlasInt(c.rows), BlasInt(c.cols), BlasInt(a.cols), 1.0F, a.data,
              Stride(a), b.data, Stride(b), 1.0F, c.data, Stride(c));
}

void AddTransposedProduct(ThreadPool& pool, MatView<const float> a, MatView<const float> b, MatView<float> c) {
  DF_CHECK(a.cols == c.rows);
  ForEachTile(pool, c.rows, [&](size_t begin, size_t end) {
    AddTransposedProduct({a.data + begin, a.rows, end - begin, a.stride}, b, c.Rows(begin, end));
  });
}

void Multiply(ThreadPool& pool, MatView<const float> a, MatView<const float> b, MatView<float> c) {
  DF_CHECK(a.rows == c.rows);
  ForEachTile(pool, c.rows, [&](size_t begin, size_t end) { Multiply(a.Rows(begin, end), b, c.Rows(begin, end)); });
}

void SubtractProduct(ThreadPool& pool, MatView<const float> a, MatView<const float> b, MatView<float> c) {
  DF_CHECK(a.rows == c.rows);
  ForEachTile(pool, c.rows,
              [&](size_t begin, size_t end) { SubtractProduct(a.Rows(begin, end), b, c.Rows(begin, end)); });
}

void AddProductTransposed(ThreadPool& pool, MatView<const float> a, MatView<const float> b, MatView<float> c) {
  DF_CHECK(a.rows == c.rows);
  ForEachTile(pool, c.rows,
              [&](size_t begin, size_t end) { AddProductTransposed(a.Rows(begin, end), b, c.Rows(begin, end)); });
}

Mat<double> Gram(ThreadPool& pool, MatView<const float> a) {
  HoldBlasToOneThread();
  const bool along_rows = a.rows <= a.cols;
  const size_t k = std::min(a.rows, a.cols);
  Mat<double> gram(k, k);
  std::vector<GramTile> tiles;  // on and above the diagonal
  for (size_t row = 0; row < k; row += kGramTile) {
    for (size_t col = row; col < k; col += kGramTile) tiles.push_back({row, col});
  }
  const size_t grain = (tiles.size() + kMaxCallers - 1) / kMaxCallers;
  pool.ParallelFor(tiles.size(), std::max<size_t>(grain, 1), [&](size_t begin, size_t end, size_t) {
    for (size_t i = begin; i < end; ++i) FillGramTile(a, along_rows, tiles[i], gram.view());
  });
  for (size_t row = 0; row < k; ++row) {
    for (size_t col = 0; col < row; ++col) gram.Row(row)[col] = gram.Row(col)[row];
  }
  return gram;
}

double SumOfSquares(MatView<const float> a) {
  double total = 0;
  for (size_t row = 0; row < a.rows; ++row) {
    double lanes[8] = {};
    const float* x = a.Row(row);
    size_t j = 0;
    for (; j + 8 <= a.cols; j += 8) {
      for (size_t k = 0; k < 8; ++k) lanes[k] += double{x[j + k]} * double{x[j + k]};
    }
    for (size_t k = 0; j + k < a.cols; ++k) lanes[k] += double{x[j + k]} * double{x[j + k]};
    for (const double lane : lanes) total += lane;
  }
  return total;
}

}  // namespace df::linalg
