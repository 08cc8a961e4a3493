#include "merge/factor_span.h"

#include <algorithm>
#include <cmath>

#include "linalg/factor.h"
#include "linalg/products.h"
#include "linalg/products64.h"

namespace df {
namespace {

using linalg::Product;
using linalg::ProductTransposed;
using linalg::TransposedProduct;

double Trace(const Mat<double>& a) {
  double sum = 0;
  for (size_t i = 0; i < a.rows(); ++i) sum += a.Row(i)[i];
  return sum;
}

Mat<float> Narrowed(const Mat<double>& a) {
  Mat<float> narrow(a.rows(), a.cols());
  std::transform(a.view().data, a.view().data + a.rows() * a.cols(), narrow.view().data,
                 [](double value) { return static_cast<float>(value); });
  return narrow;
}

// R with gram = R R^T: eigenvectors by the roots of their values. [k, k]
Result<Mat<double>> RootOf(const Mat<double>& gram) {
  DF_ASSIGN_OR_RETURN(const linalg::SymmetricEigen eigen,
                      linalg::EigenOfSymmetric(gram.view(), linalg::EigenPart::kVectors));
  Mat<double> root(gram.rows(), gram.rows());
  for (size_t i = 0; i < gram.rows(); ++i) {
    const double length = std::sqrt(std::max(eigen.values[i], 0.0));
    for (size_t row = 0; row < gram.rows(); ++row) root.Row(row)[i] = length * eigen.vectors.Row(i)[row];
  }
  return root;
}

// A power of two by which b grows and a shrinks, exactly, so that both have about one length: sums over parts of unlike
// balance would lose the smaller one's.
float BalanceOf(const FactorPair& pair) {
  const double a = linalg::SumOfSquares(pair.a.view()), b = linalg::SumOfSquares(pair.b.view());
  if (a == 0 || b == 0) return 1;
  return static_cast<float>(std::exp2(std::clamp(std::round(std::log2(a / b) / 4), -60.0, 60.0)));
}

// Values whose squares are below this share of |A|^2 |B C|^2 are sums of roundings: 64 2^-53.
constexpr double kRoundingShare = 0x1.0p-47;

}  // namespace

FactorSpan::FactorSpan(std::span<const FactorPair* const> parts) {
  DF_CHECK(!parts.empty());
  begin_.push_back(0);
  for (const FactorPair* part : parts) begin_.push_back(begin_.back() + part->rank());
  const size_t k = begin_.back(), d_out = parts[0]->d_out(), d_in = parts[0]->d_in();
  b_ = Mat<float>(d_out, k);
  a_ = Mat<float>(k, d_in);
  for (size_t i = 0; i < parts.size(); ++i) {
    const FactorPair& part = *parts[i];
    DF_CHECK(part.d_out() == d_out && part.d_in() == d_in);
    const float balance = BalanceOf(part), inverse = 1 / balance;
    const size_t begin = begin_[i], rank = part.rank();
    for (size_t k_row = 0; k_row < rank; ++k_row) {
      for (size_t col = 0; col < d_in; ++col) a_.Row(begin + k_row)[col] = part.a.Row(k_row)[col] * inverse;
    }
    for (size_t row = 0; row < d_out; ++row) {
      for (size_t col = 0; col < rank; ++col) b_.Row(row)[begin + col] = part.b.Row(row)[col] * balance;
    }
  }
  gram_b_ = linalg::Gram(b_.view(), linalg::GramOf::kColumns);
  gram_a_ = linalg::Gram(a_.view(), linalg::GramOf::kRows);
}

Mat<double> FactorSpan::Weighted(std::span<const double> weights) const {
  DF_CHECK(weights.size() + 1 == begin_.size());
  Mat<double> core(size(), size());
  for (size_t part = 0; part < weights.size(); ++part) {
    for (size_t i = begin_[part]; i < begin_[part + 1]; ++i) core.Row(i)[i] = weights[part];
  }
  return core;
}

double FactorSpan::InnerProduct(MatView<const double> first, MatView<const double> second) const {
  const Mat<double> left = Product(gram_b_.view(), first), right = Product(second, gram_a_.view());
  double sum = 0;
  for (size_t i = 0; i < size() * size(); ++i) sum += left.view().data[i] * right.view().data[i];
  return sum;
}

double FactorSpan::SquaredNorm(MatView<const double> core) const { return std::max(InnerProduct(core, core), 0.0); }

Result<CoreSvd> FactorSpan::Svd(MatView<const double> core) const {
  DF_ASSIGN_OR_RETURN(const Mat<double> root, RootOf(gram_a_));
  const Mat<double> core_root = Product(core, root.view());                                  // C R
  const Mat<double> projected = Product(gram_b_.view(), core);                               // G_B C
  const Mat<double> root_projected = TransposedProduct(core_root.view(), projected.view());  // R^T C^T G_B C
  const Mat<double> square = Product(root_projected.view(), root.view());
  DF_ASSIGN_OR_RETURN(const linalg::SymmetricEigen eigen,
                      linalg::EigenOfSymmetric(square.view(), linalg::EigenPart::kVectors));
  const double scale = Trace(gram_a_) * Trace(TransposedProduct(core, projected.view()));
  const size_t k = size();
  size_t q = 0;
  while (q < k && eigen.values[k - 1 - q] > kRoundingShare * scale) ++q;
  CoreSvd svd{Mat<double>(k, q), Mat<double>(q, k), std::vector<double>(q)};
  if (q == 0) return svd;
  Mat<double> vectors(q, k);  // V^T, descending
  for (size_t i = 0; i < q; ++i) {
    svd.values[i] = std::sqrt(eigen.values[k - 1 - i]);
    std::copy_n(eigen.vectors.Row(k - 1 - i), k, vectors.Row(i));
  }
  svd.left = ProductTransposed(core_root.view(), vectors.view());
  svd.right = Product(vectors.view(), root_projected.view());
  for (size_t i = 0; i < q; ++i) {
    for (size_t row = 0; row < k; ++row) svd.left.Row(row)[i] /= svd.values[i];
    for (size_t col = 0; col < k; ++col) svd.right.Row(i)[col] /= svd.values[i] * svd.values[i];
  }
  return svd;
}

FactorPair FactorSpan::Factors(const CoreSvd& svd, size_t rank) const {
  const size_t r = std::min(rank, svd.values.size()), k = size();
  FactorPair pair{Mat<float>(std::max<size_t>(r, 1), a_.cols()), Mat<float>(b_.rows(), std::max<size_t>(r, 1))};
  if (r == 0) return pair;
  Mat<double> left(k, r), right(r, k);
  for (size_t i = 0; i < r; ++i) {
    const double root = std::sqrt(svd.values[i]);
    for (size_t row = 0; row < k; ++row) left.Row(row)[i] = svd.left.Row(row)[i] * root;
    for (size_t col = 0; col < k; ++col) right.Row(i)[col] = svd.right.Row(i)[col] * root;
  }
  linalg::Multiply(b_.view(), Narrowed(left).view(), pair.b.view());
  linalg::Multiply(Narrowed(right).view(), a_.view(), pair.a.view());
  return pair;
}

Mat<double> FactorSpan::CutCore(const CoreSvd& svd, size_t rank) {
  const size_t r = std::min(rank, svd.values.size()), k = svd.left.rows();
  if (r == 0) return Mat<double>(k, k);
  Mat<double> left(k, r);
  for (size_t row = 0; row < k; ++row) {
    for (size_t i = 0; i < r; ++i) left.Row(row)[i] = svd.left.Row(row)[i] * svd.values[i];
  }
  return Product(left.view(), svd.right.view().Rows(0, r));
}

}  // namespace df
