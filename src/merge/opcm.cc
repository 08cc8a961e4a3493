#include "merge/opcm.h"

#include <algorithm>
#include <cmath>

#include "linalg/partial_eigen.h"
#include "linalg/products.h"
#include "linalg/products64.h"
#include "merge/elementwise.h"
#include "merge/truncation.h"

namespace df::merge {
namespace {

// Singular values below this share of the largest, by the root of the longer side, are rounding of f32: they have no
// direction that could be projected out.
constexpr double kResolution = 0x1p-24;

// Of a strip of T in f64, and of what is made of it: more would leave the caches.
constexpr size_t kStripBytes = size_t{4} << 20;

double Dot(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (size_t j = 0; j < a.size(); ++j) sum += double{a[j]} * double{b[j]};
  return sum;
}

// What a wide T [m, n], m <= n, has for singular vectors above its rounding, and the size of its leading block.
struct Directions {
  Mat<float> u;   // [m, q]
  Mat<float> vt;  // [q, n]
  size_t n_leading = 0;
};

// How many values stand before their running sum exceeds the share alpha of the whole sum.
size_t LeadingBlock(std::span<const double> values, double alpha) {
  double total = 0, sum = 0;
  for (const double value : values) total += value;
  for (size_t i = 0; i < values.size(); ++i) {
    sum += values[i];
    if (sum > alpha * total) return i;
  }
  return values.size();
}

// V^T = diag(1 / s) U^T T in f64, a strip of columns at a time, rounded at its end: an error of 2^-24 in u_i would be
// one of 2^-24 s_1 / s_i in v_i. ut [q, m], row i belongs to values[i].
Mat<float> OtherSide(ThreadPool& pool, MatView<const double> ut, std::span<const double> values,
                     MatView<const float> t) {
  Mat<float> vt(ut.rows, t.cols);
  const size_t most = std::clamp<size_t>(kStripBytes / (t.rows * sizeof(double)), 64, 512);
  for (size_t first = 0; first < t.cols; first += most) {
    const size_t cols = std::min(most, t.cols - first);
    Mat<double> from(t.rows, cols), to(ut.rows, cols);
    pool.ParallelFor(t.rows, GrainFor(cols * sizeof(double)), [&](size_t begin, size_t end, size_t) {
      for (size_t row = begin; row < end; ++row) std::copy_n(t.Row(row) + first, cols, from.Row(row));
    });
    linalg::Multiply(pool, ut, from.view(), to.view());
    pool.ParallelFor(ut.rows, GrainFor(cols * sizeof(double)), [&](size_t begin, size_t end, size_t) {
      for (size_t row = begin; row < end; ++row) {
        for (size_t j = 0; j < cols; ++j) vt.Row(row)[first + j] = static_cast<float>(to.Row(row)[j] / values[row]);
      }
    });
  }
  return vt;
}

Result<Directions> FindDirections(ThreadPool& pool, MatView<const float> t, double alpha) {
  Directions found;
  std::vector<double> values(t.rows);  // descending
  const auto choose = [&](std::span<const double> squares) {
    for (size_t i = 0; i < t.rows; ++i) values[i] = std::sqrt(std::max(squares[t.rows - 1 - i], 0.0));
    const double least = values[0] * kResolution * std::sqrt(static_cast<double>(t.cols));
    const auto q = static_cast<size_t>(std::ranges::count_if(values, [&](double value) { return value > least; }));
    found.n_leading = std::min(q, LeadingBlock(values, alpha));
    return linalg::EigenRange{t.rows - q, t.rows};
  };
  DF_ASSIGN_OR_RETURN(linalg::PartialEigen eigen, linalg::EigenOfSymmetric(pool, linalg::Gram(pool, t), choose));
  const size_t q = eigen.vectors.rows();
  if (q == 0) return found;
  for (size_t i = 0; i < q / 2; ++i) {  // descending, as the values
    std::swap_ranges(eigen.vectors.Row(i), eigen.vectors.Row(i) + t.rows, eigen.vectors.Row(q - 1 - i));
  }
  found.vt = OtherSide(pool, eigen.vectors.view(), values, t);
  found.u = Mat<float>(t.rows, q);
  for (size_t i = 0; i < q; ++i) {
    for (size_t j = 0; j < t.rows; ++j) found.u.Row(j)[i] = static_cast<float>(eigen.vectors.Row(i)[j]);
  }
  return found;
}

// tau -= its leading block and the rest of its diagonal in the directions of T. tau [m, n], m <= n.
void ProjectOut(ThreadPool& pool, const Directions& along, MatView<float> tau) {
  const size_t q = along.vt.rows(), r = along.n_leading;
  if (q == 0) return;
  // x = U^T tau becomes what to subtract, in the coordinates of U: row i < r of it the block's, the others' diagonal.
  Mat<float> x(q, tau.cols), block(r, r);
  linalg::AddTransposedProduct(pool, along.u.view(), tau, x.view());
  if (r > 0) linalg::AddProductTransposed(pool, x.Rows(0, r), along.vt.view().Rows(0, r), block.view());
  pool.ParallelFor(q - r, GrainFor(2 * tau.cols * sizeof(float)), [&](size_t begin, size_t end, size_t) {
    for (size_t i = r + begin; i < r + end; ++i) {
      const std::span<const float> v = along.vt.view().RowSpan(i);
      const double diagonal = Dot(x.view().RowSpan(i), v);
      for (size_t j = 0; j < v.size(); ++j) x.Row(i)[j] = static_cast<float>(diagonal * double{v[j]});
    }
  });
  if (r > 0) linalg::Multiply(pool, block.view(), along.vt.view().Rows(0, r), x.Rows(0, r));
  linalg::SubtractProduct(pool, along.u.view(), x.view(), tau);
}

// The difference of one model as a wide matrix: tall ones are turned.
Mat<float> Turned(const Mat<float>& a) {
  Mat<float> turned(a.cols(), a.rows());
  for (size_t row = 0; row < a.rows(); ++row) {
    for (size_t col = 0; col < a.cols(); ++col) turned.Row(col)[row] = a.Row(row)[col];
  }
  return turned;
}

Result<HeldDifference> HoldWide(ThreadPool& pool, const TensorGroup& group, size_t model) {
  std::vector<double> only(group.models.size());
  only[model] = 1;
  DF_ASSIGN_OR_RETURN(HeldDifference held, HoldDifference(pool, group, only));
  if (held.d.rows() > held.d.cols()) held.d = Turned(held.d);
  return held;
}

Result<Report> MergeProjected(ThreadPool& pool, const TensorGroup& group, double alpha, const Sink& sink) {
  DF_RETURN_IF_ERROR(CheckGramSize(group.models[0].shape[0], group.models[0].shape[1]));
  Report report{.way = Way::kGram};
  Mat<float> t;
  for (size_t i = 0; i < group.models.size(); ++i) {
    Directions along;  // found before the difference takes memory
    if (i > 0) {
      DF_ASSIGN_OR_RETURN(along, FindDirections(pool, t.view(), alpha));
      report.blocks.push_back(along.n_leading);
    }
    DF_ASSIGN_OR_RETURN(HeldDifference held, HoldWide(pool, group, i));
    report.task_squares.push_back(held.squares);
    if (i == 0) {
      report.step_squares.push_back(held.squares);
      t = std::move(held.d);
      continue;
    }
    ProjectOut(pool, along, held.d.view());
    for (size_t row = 0; row < t.rows(); ++row) {
      for (size_t col = 0; col < t.cols(); ++col) t.Row(row)[col] += held.d.Row(row)[col];
    }
    report.step_squares.push_back(linalg::SumOfSquares(t.view()));
    if (!std::isfinite(report.step_squares.back())) return FindNonFinite(group);
  }
  if (t.rows() != group.models[0].shape[0]) t = Turned(t);
  report.result_squares = report.step_squares.back();
  ForEachBlock(pool, t.rows() * t.cols(), [&](size_t first, size_t size) { sink(first, {t.Row(0) + first, size}); });
  return report;
}

// Tensors that are not projected: T_t = T_{t-1} + tau_t.
Result<Report> MergeSums(ThreadPool& pool, const TensorGroup& group, const Sink& sink) {
  const size_t n = group.models[0].elements(), n_blocks = (n + kBlock - 1) / kBlock, k = group.models.size();
  Mat<double> sums(n_blocks, 2 * k);  // of each block: |tau_i|^2, then |T_t|^2
  ForEachBlock(pool, n, [&](size_t first, size_t size) {
    std::vector<float> difference(size), total(size);
    for (size_t i = 0; i < k; ++i) {
      ReadDifference(group, i, first, difference);
      for (size_t j = 0; j < size; ++j) total[j] += difference[j];
      sums.Row(first / kBlock)[i] = element_ops::Squares(difference);
      sums.Row(first / kBlock)[k + i] = element_ops::Squares(total);
    }
    sink(first, total);
  });
  Report report{.task_squares = std::vector<double>(k), .step_squares = std::vector<double>(k)};
  for (size_t block = 0; block < n_blocks; ++block) {
    for (size_t i = 0; i < k; ++i) {
      report.task_squares[i] += sums.Row(block)[i];
      report.step_squares[i] += sums.Row(block)[k + i];
    }
  }
  report.result_squares = report.step_squares.back();
  if (!std::isfinite(report.result_squares)) return FindNonFinite(group);
  return report;
}

}  // namespace

Result<Report> MergeOpcm(ThreadPool& pool, const TensorGroup& group, const Settings& settings, const Sink& sink) {
  const bool is_projected = group.is_linear && IsMatrix(group.models[0]);
  return is_projected ? MergeProjected(pool, group, settings.alpha, sink) : MergeSums(pool, group, sink);
}

void OpcmSums::Add(const Report& report) {
  task_squares.resize(report.task_squares.size());
  step_squares.resize(report.step_squares.size());
  for (size_t i = 0; i < task_squares.size(); ++i) task_squares[i] += report.task_squares[i];
  for (size_t i = 0; i < step_squares.size(); ++i) step_squares[i] += report.step_squares[i];
}

std::vector<double> OpcmSums::Lambdas() const {
  std::vector<double> lambdas;
  double norms = 0;
  for (size_t t = 0; t < step_squares.size(); ++t) {
    norms += std::sqrt(task_squares[t]);
    const double mean = norms / static_cast<double>(t + 1);
    lambdas.push_back(mean > 0 ? std::sqrt(step_squares[t]) / mean : 1.0);
  }
  return lambdas;
}

double OpcmSums::Scale() const {
  const double lambda = step_squares.empty() ? 1.0 : Lambdas().back();
  return lambda > 0 ? 1 / lambda : 0.0;
}

Result<Report> FinishOpcm(ThreadPool& pool, const std::string& name, const TensorView& base, const TensorView& unscaled,
                          double scale, const Sink& sink) {
  if (unscaled.dtype != DType::kF32 || unscaled.shape != base.shape) {
    return InvalidArgument("tensor " + name + ": the sum of its task vectors is " +
                           std::string(DTypeName(unscaled.dtype)) + " " + ToString(unscaled.shape) + ", not F32 " +
                           ToString(base.shape));
  }
  const size_t n = base.elements();
  Buffer<double> squares((n + kBlock - 1) / kBlock);
  ForEachBlock(pool, n, [&](size_t first, size_t size) {
    std::vector<float> from(size), sum(size), out(size);
    ReadElements(base, first, from);
    ReadElements(unscaled, first, sum);
    const float* const run = sum.data();
    squares[first / kBlock] = element_ops::WeightedSum({{&run, 1}, from.data()}, {&scale, 1}, out);
    sink(first, out);
  });
  Report report{.coefficients = {scale}};
  for (const double square : squares.span()) report.result_squares += square;
  if (!std::isfinite(report.result_squares)) {
    return FindNonFinite({.name = name, .base = base, .models = {unscaled}, .model_names = {"the sum of the changes"}});
  }
  return report;
}

}  // namespace df::merge
