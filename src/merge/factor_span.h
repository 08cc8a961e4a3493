// Sums of low-rank products without the matrices: everything that parts b_1 a_1 .. b_n a_n span is
//
//   X = B C A        B = [b_1 .. b_n] [d_out, k],  A = [a_1; ..; a_n] [k, d_in],  k = r_1 + .. + r_n
//
// for a small core C [k, k]. With G_B = B^T B, G_A = A A^T = R R^T and A^T = Q R^T-wise (a QR of the side A, its R
// taken from the Gram matrix in f64),
//
//   |X|^2 = tr(C^T G_B C G_A)        X^T X = Q (R^T C^T G_B C R) Q^T = Q V diag(s^2) V^T Q^T
//   X = U diag(s) V_x^T,  U = B (C R V s^-1),  V_x^T = (s^-2 V^T R^T C^T G_B C) A
//
// so that cutting at rank r is two products with B and A. Each part is brought to |b_i| ~ |a_i| first. f64 Gram
// matrices resolve values down to 1e-7 of |B C| |A|; what lies below is dropped as rounding.
#ifndef DELTAFOLD_MERGE_FACTOR_SPAN_H_
#define DELTAFOLD_MERGE_FACTOR_SPAN_H_

#include <span>
#include <vector>

#include "base/status.h"
#include "merge/adapter_factors.h"

namespace df {

// The singular value decomposition of B C A in coordinates of the span.
struct CoreSvd {
  Mat<double> left;            // [k, q]: U = B left
  Mat<double> right;           // [q, k]: V_x^T = right A
  std::vector<double> values;  // [q] descending, those above the rounding
};

// Copies the parts once, 4 k (d_out + d_in) bytes, which DropFactors gives back. Thread-compatible.
class FactorSpan {
 public:
  // Parts of one shape, at least one.
  explicit FactorSpan(std::span<const FactorPair* const> parts);

  size_t size() const { return gram_a_.rows(); }            // k
  size_t Begin(size_t part) const { return begin_[part]; }  // its first coordinate; Begin(n) = k
  // The core of sum_i weights_i b_i a_i.
  Mat<double> Weighted(std::span<const double> weights) const;

  double SquaredNorm(MatView<const double> core) const;
  double InnerProduct(MatView<const double> first, MatView<const double> second) const;
  // Errors of EigenOfSymmetric.
  Result<CoreSvd> Svd(MatView<const double> core) const;
  // U diag(s)^1/2 and diag(s)^1/2 V_x^T of the first `rank` values, at least one (zeros where there is none); f32, norm
  // not set.
  FactorPair Factors(const CoreSvd& svd, size_t rank) const;
  // What Factors gives, as a core.
  static Mat<double> CutCore(const CoreSvd& svd, size_t rank);

  const Mat<double>& gram_b() const { return gram_b_; }
  const Mat<double>& gram_a() const { return gram_a_; }
  void DropFactors() { b_ = {}, a_ = {}; }

 private:
  Mat<float> b_, a_;
  Mat<double> gram_b_, gram_a_;
  std::vector<size_t> begin_;
};

}  // namespace df

#endif  // DELTAFOLD_MERGE_FACTOR_SPAN_H_
