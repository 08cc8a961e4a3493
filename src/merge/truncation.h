// The leading part of a task vector by its singular values, found in the cheaper of two ways, and merged tensors made
// of such parts. For svd_average and monosoup.
#ifndef DELTAFOLD_MERGE_TRUNCATION_H_
#define DELTAFOLD_MERGE_TRUNCATION_H_

#include <vector>

#include "merge/method.h"
#include "tensor/mat.h"

namespace df::merge {

// How many leading terms to keep: the first of these that is given.
struct CutRule {
  bool effective_rank = false;  // ceil(exp(entropy of s / sum s))
  size_t rank = 0;              // so many, at most all
  double energy = 0;            // the fewest with this share of the squares, at least one
};

// Either D_k = left right or, where that takes fewer columns, D - D_k = left right; `left` [m, c], `right` [c, n],
// empty where c would be 0.
struct Truncation {
  SpectrumReport spectrum;
  bool is_rest = false;
  Mat<float> left = {}, right = {};
};

// Of d [m, n] finite, `squares` its |d|^2. Where min(m, n) <= kGramAlways, where an effective rank is asked for and
// where k may exceed kMostProjected: by all eigenvalues of d's Gram matrix in f64 (way kGram: values below 1e-8 of the
// largest drown and count as 0); memory then n^2 f64 of the shorter side n, and n more for each term held. Otherwise
// by random projection (way kRandomised): D_k is the leading part of D's projection on a subspace that holds the
// leading values nearly whole; `energy` counts what D_k has of |d|^2, so that it never says more than the exact one.
// The only errors are those of linalg/factor.h.
inline constexpr size_t kGramAlways = 512;
inline constexpr size_t kMostProjected = 256;
Result<Truncation> Truncate(ThreadPool& pool, MatView<const float> d, double squares, const CutRule& rule);

// kUnsupported where the Gram matrix is too large for LAPACK: asked before it is made.
Status CheckGramSize(size_t rows, size_t cols);

void Scale(double factor, Mat<float>& left);  // left *= factor

bool IsMatrix(const TensorView& tensor);  // of rank 2, with elements

// sum_i weights_i (W_i - W_b) as one matrix in f32, rounded once, with |W_i - W_b|^2 of each and its own squares. The
// group is of matrices. The only error is FindNonFinite's.
struct HeldDifference {
  Mat<float> d;
  std::vector<double> task_squares;  // [k]; 0 where the weight is 0
  double squares = 0;
};
Result<HeldDifference> HoldDifference(ThreadPool& pool, const TensorGroup& group, std::span<const double> weights);

// W = W_b + sum_i coefficients_i (W_i - W_b) + sum_j left_j right_j, in blocks of rows; fills result_squares. The only
// error is FindNonFinite's.
struct LowRankTerm {
  MatView<const float> left, right;
};
Status WriteSum(ThreadPool& pool, const TensorGroup& group, std::span<const double> coefficients,
                std::span<const LowRankTerm> terms, const Sink& sink, Report& report);

// The plain mean of the models, where singular values do not apply.
Result<Report> MergeMean(ThreadPool& pool, const TensorGroup& group, const Sink& sink);

}  // namespace df::merge

#endif  // DELTAFOLD_MERGE_TRUNCATION_H_
