#include "merge/truncation.h"

#include <algorithm>
#include <cmath>

#include "linalg/factor.h"
#include "linalg/partial_eigen.h"
#include "linalg/products.h"
#include "linalg/range_finder.h"
#include "merge/elementwise.h"

namespace df::merge {
namespace {

// Columns of a projection beyond those that are kept: the last ones found are the least exact.
constexpr size_t kMargin = 16;

// Squares of singular values, descending, those that drown set to 0. `ascending`: eigenvalues of a Gram matrix.
std::vector<double> DescendingSquares(std::span<const double> ascending) {
  std::vector<double> squares(ascending.rbegin(), ascending.rend());
  const double least = squares[0] * static_cast<double>(squares.size()) * 0x1p-53;
  for (double& square : squares) square = square > least ? square : 0.0;
  return squares;
}

size_t RankOfEnergy(std::span<const double> squares, double wanted) {
  double sum = 0;
  for (size_t k = 0; k < squares.size(); ++k) {
    sum += squares[k];
    if (sum >= wanted) return k + 1;
  }
  return squares.size();
}

size_t EffectiveRank(std::span<const double> squares) {
  double sum = 0, entropy = 0;
  for (const double square : squares) sum += std::sqrt(square);
  for (const double square : squares) {
    const double share = std::sqrt(square) / sum;
    if (share > 0) entropy -= share * std::log(share);
  }
  // Equal values have their number for effective rank: rounding must not make it one more.
  return static_cast<size_t>(std::ceil(std::exp(entropy) * (1 - 1e-9)));
}

size_t ChooseRank(std::span<const double> squares, double total, const CutRule& rule) {
  size_t k = 0;
  if (rule.effective_rank) {
    k = EffectiveRank(squares);
  } else {
    k = rule.rank > 0 ? rule.rank : RankOfEnergy(squares, rule.energy * total);
  }
  return std::clamp<size_t>(k, 1, squares.size());
}

SpectrumReport Describe(std::span<const double> squares, double total, size_t k, Way way) {
  SpectrumReport spectrum{.rank = k, .largest = std::sqrt(squares[0]), .way = way};
  double kept = 0;
  for (size_t i = 0; i < k; ++i) kept += squares[i];
  spectrum.energy = std::min(kept / total, 1.0);
  spectrum.first_cut = k < squares.size() ? std::sqrt(squares[k]) : 0.0;
  return spectrum;
}

// Which terms of a spectrum a truncation holds: the leading k, or those that are cut where they are fewer.
struct HeldTerms {
  bool is_rest = false;
  size_t first = 0, end = 0;
};
HeldTerms ChooseTerms(std::span<const double> squares, size_t k) {
  const auto n_nonzero = static_cast<size_t>(std::ranges::count_if(squares, [](double x) { return x > 0; }));
  if (k >= n_nonzero) return {true, n_nonzero, n_nonzero};
  return n_nonzero - k < k ? HeldTerms{true, k, n_nonzero} : HeldTerms{false, 0, k};
}

// Factors of terms whose vectors on the shorter side are given, ascending; the product with d gives the other side.
void MakeFactors(ThreadPool& pool, MatView<const float> d, const Mat<double>& vectors, Truncation& cut) {
  const size_t n = vectors.rows();
  const bool is_wide = d.rows <= d.cols;
  cut.left = Mat<float>(d.rows, n);
  cut.right = Mat<float>(n, d.cols);
  for (size_t i = 0; i < n; ++i) {
    const double* vector = vectors.Row(n - 1 - i);
    for (size_t j = 0; j < vectors.cols(); ++j) {
      (is_wide ? cut.left.Row(j)[i] : cut.right.Row(i)[j]) = static_cast<float>(vector[j]);
    }
  }
  if (is_wide) {
    linalg::AddTransposedProduct(pool, cut.left.view(), d, cut.right.view());
  } else {
    linalg::AddProductTransposed(pool, d, cut.right.view(), cut.left.view());
  }
}

Result<Truncation> TruncateByGram(ThreadPool& pool, MatView<const float> d, const CutRule& rule) {
  DF_RETURN_IF_ERROR(CheckGramSize(d.rows, d.cols));
  Truncation cut;
  const auto choose = [&](std::span<const double> values) {
    const std::vector<double> squares = DescendingSquares(values);
    double total = 0;
    for (const double square : squares) total += square;
    cut.spectrum = Describe(squares, total, ChooseRank(squares, total, rule), Way::kGram);
    cut.spectrum.size = squares.size();
    const HeldTerms held = ChooseTerms(squares, cut.spectrum.rank);
    cut.is_rest = held.is_rest;
    return linalg::EigenRange{squares.size() - held.end, squares.size() - held.first};
  };
  DF_ASSIGN_OR_RETURN(const linalg::PartialEigen eigen, linalg::EigenOfSymmetric(pool, linalg::Gram(pool, d), choose));
  if (eigen.vectors.rows() > 0) MakeFactors(pool, d, eigen.vectors, cut);
  return cut;
}

// Leading terms of a projection D ~ Q B: those of B, whose left vectors Q turns.
Result<Truncation> TruncateProjection(ThreadPool& pool, const linalg::RangeFinder& range, double total,
                                      const CutRule& rule) {
  const MatView<const float> b = range.b();
  DF_ASSIGN_OR_RETURN(const auto eigen,
                      linalg::EigenOfSymmetric(linalg::Gram(pool, b).view(), linalg::EigenPart::kVectors));
  const std::vector<double> squares = DescendingSquares(eigen.values.span());
  const size_t k = ChooseRank(squares, total, rule);
  Truncation cut{.spectrum = Describe(squares, total, k, Way::kRandomised)};
  cut.spectrum.size = std::min(range.q().rows, b.cols);
  Mat<float> turn(squares.size(), k);
  for (size_t j = 0; j < turn.rows(); ++j) {
    for (size_t i = 0; i < k; ++i) turn.Row(j)[i] = static_cast<float>(eigen.vectors.Row(squares.size() - 1 - i)[j]);
  }
  cut.left = Mat<float>(range.q().rows, k);
  cut.right = Mat<float>(k, b.cols);
  linalg::Multiply(pool, range.q(), turn.view(), cut.left.view());
  linalg::AddTransposedProduct(pool, turn.view(), b, cut.right.view());
  return cut;
}

// The first `rank` terms.
Result<Truncation> ProjectToRank(ThreadPool& pool, MatView<const float> d, double squares, const CutRule& rule) {
  linalg::RangeFinder range(pool, d, {.max_columns = rule.rank + kMargin + rule.rank / 8});
  while (!range.is_full()) DF_RETURN_IF_ERROR(range.Grow());
  return TruncateProjection(pool, range, squares, rule);
}

// As many terms as reach the energy; none where more than kMostProjected are needed.
Result<std::optional<Truncation>> ProjectToEnergy(ThreadPool& pool, MatView<const float> d, double squares,
                                                  const CutRule& rule) {
  // By Cauchy and Schwarz k values have at most (k sum s^4)^(1/2) of the squares; twice for the estimate's deviation.
  const double wanted = rule.energy * squares;
  const double fourth = linalg::EstimateFourthPowers(pool, d, 16, 1);
  if (wanted * wanted > 2 * static_cast<double>(kMostProjected) * fourth) return std::optional<Truncation>();
  linalg::RangeFinder range(pool, d, {.block = 72, .max_columns = kMostProjected + 2 * kMargin});
  while (!range.is_full()) {
    DF_RETURN_IF_ERROR(range.Grow());
    const double left_over = wanted - linalg::SumOfSquares(range.b());
    if (left_over <= 0) {
      DF_ASSIGN_OR_RETURN(Truncation cut, TruncateProjection(pool, range, squares, rule));
      const size_t k = cut.spectrum.rank;
      if (k <= kMostProjected && k + kMargin <= range.columns()) return std::optional(std::move(cut));
      if (k > kMostProjected) break;
    }
  }
  return std::optional<Truncation>();
}

}  // namespace

void Scale(double factor, Mat<float>& left) {
  for (float& value : std::span(left.Row(0), left.rows() * left.cols())) {
    value = static_cast<float>(factor * double{value});
  }
}

Status CheckGramSize(size_t rows, size_t cols) {
  if (std::min(rows, cols) <= linalg::kMaxPartialEigen && std::max(rows, cols) <= linalg::kMaxDimension) {
    return Status::Ok();
  }
  return Unsupported("all singular values of a " + std::to_string(rows) + " x " + std::to_string(cols) +
                     " matrix: its shorter side may have " + std::to_string(linalg::kMaxPartialEigen) + " at most");
}

bool IsMatrix(const TensorView& tensor) { return tensor.shape.rank() == 2 && tensor.elements() > 0; }

Result<Truncation> Truncate(ThreadPool& pool, MatView<const float> d, double squares, const CutRule& rule) {
  const size_t size = std::min(d.rows, d.cols);
  if (squares == 0) return Truncation{.spectrum = {.size = size, .energy = 1}, .is_rest = true};
  if (std::max(d.rows, d.cols) > linalg::kMaxDimension) return CheckGramSize(d.rows, d.cols);
  if (size <= kGramAlways || rule.effective_rank) return TruncateByGram(pool, d, rule);
  if (rule.rank > 0) {
    if (rule.rank > kMostProjected) return TruncateByGram(pool, d, rule);
    return ProjectToRank(pool, d, squares, rule);
  }
  DF_ASSIGN_OR_RETURN(std::optional<Truncation> cut, ProjectToEnergy(pool, d, squares, rule));
  if (cut) return std::move(*cut);
  return TruncateByGram(pool, d, rule);
}

Result<HeldDifference> HoldDifference(ThreadPool& pool, const TensorGroup& group, std::span<const double> weights) {
  const size_t rows = group.models[0].shape[0], cols = group.models[0].shape[1], n_models = group.models.size();
  HeldDifference held{.d = Mat<float>(rows, cols), .task_squares = std::vector<double>(n_models)};
  const size_t n = rows * cols, n_blocks = (n + kBlock - 1) / kBlock;
  Mat<double> sums(n_blocks, n_models + 1);
  ForEachBlock(pool, n, [&](size_t first, size_t size) {
    Mat<float> differences(n_models, size);
    std::vector<const float*> runs;
    std::vector<double> factors;
    double* const of_block = sums.Row(first / kBlock);
    for (size_t i = 0; i < n_models; ++i) {
      if (weights[i] == 0) continue;
      ReadDifference(group, i, first, differences.view().RowSpan(i));
      of_block[i] = element_ops::Squares(differences.view().RowSpan(i));
      runs.push_back(differences.Row(i));
      factors.push_back(weights[i]);
    }
    of_block[n_models] = element_ops::WeightedSum({runs}, factors, {held.d.Row(0) + first, size});
  });
  for (size_t block = 0; block < n_blocks; ++block) {
    for (size_t i = 0; i < n_models; ++i) held.task_squares[i] += sums.Row(block)[i];
    held.squares += sums.Row(block)[n_models];
  }
  if (!std::isfinite(held.squares)) return FindNonFinite(group);
  return held;
}

namespace {

// Rows in work at once: enough for a product to be bound by arithmetic, and at most 8 MiB.
size_t RowsOfBlock(size_t cols) { return std::clamp<size_t>((size_t{8} << 20) / (cols * sizeof(float)), 1, 128); }

struct SumJob {
  const TensorGroup& group;
  std::span<const double> coefficients;
  std::span<const LowRankTerm> terms;
  const Sink& sink;
};

// Rows [first, first + change.rows) of the result; squares [change.rows].
void WriteRows(const SumJob& job, size_t first, MatView<float> change, std::span<double> squares) {
  const size_t cols = change.cols, n_models = job.group.models.size();
  const bool reads_models = std::ranges::any_of(job.coefficients, [](double c) { return c != 0; });
  Mat<float> differences(reads_models ? n_models : 0, cols);
  std::vector<const float*> runs;
  for (size_t i = 0; reads_models && i < n_models; ++i) runs.push_back(differences.Row(i));
  for (size_t row = 0; row < change.rows; ++row) {
    for (size_t i = 0; i < runs.size(); ++i) {
      ReadDifference(job.group, i, (first + row) * cols, differences.view().RowSpan(i));
    }
    if (reads_models) {
      element_ops::WeightedSum({runs}, job.coefficients, change.RowSpan(row));
    } else {
      std::ranges::fill(change.RowSpan(row), 0.0F);
    }
  }
  for (const LowRankTerm& term : job.terms) {
    if (term.left.cols > 0) linalg::AddProduct(term.left.Rows(first, first + change.rows), term.right, change);
  }
  std::vector<float> base(cols), out(cols);
  const double one = 1;
  for (size_t row = 0; row < change.rows; ++row) {
    ReadElements(*job.group.base, (first + row) * cols, base);
    const float* const run = change.Row(row);
    squares[row] = element_ops::WeightedSum({{&run, 1}, base.data()}, {&one, 1}, out);
    job.sink((first + row) * cols, out);
  }
}

}  // namespace

Status WriteSum(ThreadPool& pool, const TensorGroup& group, std::span<const double> coefficients,
                std::span<const LowRankTerm> terms, const Sink& sink, Report& report) {
  const size_t rows = group.models[0].shape[0], cols = group.models[0].shape[1];
  const size_t block_rows = RowsOfBlock(cols), n_blocks = (rows + block_rows - 1) / block_rows;
  const SumJob job{group, coefficients, terms, sink};
  Buffer<double> squares(rows);
  const size_t grain = std::max<size_t>((n_blocks + linalg::kMaxCallers - 1) / linalg::kMaxCallers, 1);
  pool.ParallelFor(n_blocks, grain, [&](size_t begin, size_t end, size_t) {
    Mat<float> memory(block_rows, cols);
    for (size_t block = begin; block < end; ++block) {
      const size_t first = block * block_rows, n = std::min(block_rows, rows - first);
      WriteRows(job, first, memory.Rows(0, n), squares.span().subspan(first, n));
    }
  });
  report.result_squares = 0;
  for (const double square : squares.span()) report.result_squares += square;
  return std::isfinite(report.result_squares) ? Status::Ok() : FindNonFinite(group);
}

Result<Report> MergeMean(ThreadPool& pool, const TensorGroup& group, const Sink& sink) {
  if (group.models.size() == 1) return CopyModel(pool, group, sink);
  const double share = 1.0 / static_cast<double>(group.models.size());
  return MergeElementwise(pool, group, {.coefficients = std::vector<double>(group.models.size(), share)}, sink);
}

}  // namespace df::merge
