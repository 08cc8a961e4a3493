#include "linalg/randomized_svd.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>
#include <string>
#include <vector>

#include "base/rng.h"
#include "linalg/blas.h"
#include "linalg/products.h"

namespace df::linalg {
namespace {

// Rows made at a time: few enough to stay in the outer cache, enough for a product to be bound by arithmetic.
constexpr size_t kBlockBytes = size_t{8} << 20;
constexpr size_t kMaxBlockRows = 256;

// A and how its rows are cut: parts of fixed borders, each summed by one thread, in blocks.
struct Job {
  ThreadPool& pool;
  const RowSource& a;
  size_t n_parts = 1;
  size_t block_rows = 1;

  size_t PartBegin(size_t part) const { return a.rows * part / n_parts; }
};

Job JobOf(ThreadPool& pool, const RowSource& a, size_t n_parts) {
  const size_t rows_in_block = kBlockBytes / (a.cols * sizeof(float));
  return {pool, a, n_parts, std::clamp<size_t>(rows_in_block, 1, kMaxBlockRows)};
}

// As many parts as keep their sums [cols, width] within half of A; a power of two, so that threads have equal shares.
size_t PartsWithSums(const RowSource& a, size_t width) {
  return std::bit_floor(std::clamp<size_t>(a.rows / (2 * width), 1, kMaxCallers));
}

// visit(block of A, its first row, part), the blocks of one part one after another.
template <typename Visit>
void ForEachBlock(const Job& job, const Visit& visit) {
  job.pool.ParallelFor(job.n_parts, 1, [&](size_t begin, size_t end, size_t thread) {
    Mat<float> memory(job.block_rows, job.a.cols);
    for (size_t part = begin; part < end; ++part) {
      const size_t last = job.PartBegin(part + 1);
      for (size_t row = job.PartBegin(part); row < last; row += job.block_rows) {
        const MatView<float> block = memory.Rows(0, std::min(job.block_rows, last - row));
        job.a.read(row, block, thread);
        visit(MatView<const float>(block), row, part);
      }
    }
  });
}

// y = A z, and the sum of A's squares.
double Project(const Job& job, const Mat<float>& z, Mat<float>& y) {
  std::vector<double> squares(job.n_parts);
  ForEachBlock(job, [&](MatView<const float> block, size_t row, size_t part) {
    Multiply(block, z.view(), y.Rows(row, row + block.rows));
    squares[part] += SumOfSquares(block);
  });
  double sum = 0;
  for (const double square : squares) sum += square;
  return sum;
}

// z = A^T q.
void ProjectBack(const Job& job, Mat<float>& q, Mat<float>& z) {
  std::vector<Mat<float>> sums(job.n_parts);
  ForEachBlock(job, [&](MatView<const float> block, size_t row, size_t part) {
    if (sums[part].rows() == 0) sums[part] = Mat<float>(z.rows(), z.cols());
    AddTransposedProduct(block, q.Rows(row, row + block.rows), sums[part].view());
  });
  job.pool.ParallelFor(z.rows(), GrainFor(z.cols() * sizeof(float) * job.n_parts),
                       [&](size_t begin, size_t end, size_t) {
                         for (size_t row = begin; row < end; ++row) {
                           std::fill_n(z.Row(row), z.cols(), 0.0F);
                           for (const Mat<float>& sum : sums) {
                             for (size_t k = 0; k < z.cols(); ++k) z.Row(row)[k] += sum.Row(row)[k];
                           }
                         }
                       });
}

// Independent normal numbers (Box and Muller), each a function of its place and the seed.
Mat<float> Gaussian(size_t rows, size_t cols, uint64_t seed) {
  Mat<float> w(rows, cols);
  for (size_t i = 0; i < rows * cols; ++i) {
    const double radius = std::sqrt(-2 * std::log(1 - RandomUnit(seed, 2 * i)));
    w.Row(0)[i] = static_cast<float>(radius * std::cos(2 * std::numbers::pi * RandomUnit(seed, 2 * i + 1)));
  }
  return w;
}

// `back` = A^T Q [n, l], so that A ~ Q back^T: the small decomposition is of back = V s W^T, and U = Q W.
Result<Svd> FromProjection(const Mat<float>& q, const Mat<float>& back, size_t rank) {
  DF_ASSIGN_OR_RETURN(const Svd small, ExactSvd(back.view()));
  Svd svd{Mat<float>(q.rows(), rank), Buffer<float>(rank), Mat<float>(rank, back.rows())};
  Mat<float> w(q.cols(), rank);  // the leading columns of W = vt^T
  for (size_t row = 0; row < w.rows(); ++row) {
    for (size_t k = 0; k < rank; ++k) w.Row(row)[k] = small.vt.Row(k)[row];
  }
  Multiply(q.view(), w.view(), svd.u.view());
  std::copy_n(small.s.data(), rank, svd.s.data());
  for (size_t k = 0; k < rank; ++k) {
    for (size_t j = 0; j < back.rows(); ++j) svd.vt.Row(k)[j] = small.u.Row(j)[k];
  }
  return svd;
}

}  // namespace

RowSource RowsOf(MatView<const float> a) {
  return {a.rows, a.cols, [a](size_t first, MatView<float> out, size_t) {
            for (size_t row = 0; row < out.rows; ++row) std::copy_n(a.Row(first + row), a.cols, out.Row(row));
          }};
}

Result<TruncatedSvd> RandomizedSvd(ThreadPool& pool, const RowSource& a, const RandomizedSvdOptions& options) {
  const std::string size = std::to_string(a.rows) + " x " + std::to_string(a.cols);
  if (a.rows == 0 || a.cols == 0) return InvalidArgument("singular values of an empty matrix (" + size + ")");
  if (a.rows > kMaxDimension || a.cols > kMaxDimension) {
    return Unsupported("singular values of a " + size + " matrix: LAPACK takes at most 2147483647");
  }
  const size_t smaller = std::min(a.rows, a.cols);
  const size_t rank = std::clamp<size_t>(options.rank, 1, smaller);
  const size_t width = std::min(rank + options.oversampling, smaller);
  const Job forth = JobOf(pool, a, std::min(a.rows, kMaxCallers));
  const Job back = JobOf(pool, a, PartsWithSums(a, width));
  Mat<float> z = Gaussian(a.cols, width, options.seed), y(a.rows, width);
  TruncatedSvd result;
  result.sum_of_squares = Project(forth, z, y);
  if (!std::isfinite(result.sum_of_squares)) {
    return InvalidArgument("singular values of a " + size + " matrix that is not finite");
  }
  DF_RETURN_IF_ERROR(OrthonormalizeColumns(y.view()));
  for (size_t i = 0; i < options.power_iterations; ++i) {
    ProjectBack(back, y, z);
    DF_RETURN_IF_ERROR(OrthonormalizeColumns(z.view()));
    Project(forth, z, y);
    DF_RETURN_IF_ERROR(OrthonormalizeColumns(y.view()));
  }
  ProjectBack(back, y, z);
  DF_ASSIGN_OR_RETURN(result.svd, FromProjection(y, z, rank));
  return result;
}

}  // namespace df::linalg
