#include "linalg/factor.h"

#include <gtest/gtest.h>

#include <limits>

#include "linalg/linalg_fixture.h"
#include "linalg/products.h"
#include "testing/refusal.h"
#include "testing/status_matchers.h"

namespace df::linalg {
namespace {

using testing::ExpectRefusal;
using testing::ValueOrDie;

struct Size {
  size_t rows, cols;
};
const std::vector<Size> kSizes = {{1, 1}, {1, 37}, {37, 1}, {5, 5}, {96, 17}, {17, 96}, {130, 128}};

// Householder's methods lose at most a modest multiple of max(m, n) roundings, relative to the largest value.
double Tolerance(size_t rows, size_t cols) { return 4 * static_cast<double>(std::max(rows, cols)) * 0x1.0p-24; }

// Largest entry of |q q^T - 1|, the rows of q.
double Skew(MatView<const float> q) {
  double worst = 0;
  for (size_t i = 0; i < q.rows; ++i) {
    for (size_t j = 0; j < q.rows; ++j) {
      double inner = 0;
      for (size_t k = 0; k < q.cols; ++k) inner += double{q.Row(i)[k]} * double{q.Row(j)[k]};
      worst = std::max(worst, std::fabs(inner - (i == j ? 1.0 : 0.0)));
    }
  }
  return worst;
}

Mat<float> Transposed(MatView<const float> a) {
  Mat<float> t(a.cols, a.rows);
  for (size_t i = 0; i < a.rows; ++i) {
    for (size_t j = 0; j < a.cols; ++j) t.Row(j)[i] = a.Row(i)[j];
  }
  return t;
}

double WorstRebuilt(const Svd& svd, MatView<const float> a) {
  double worst = 0;
  for (size_t i = 0; i < a.rows; ++i) {
    for (size_t j = 0; j < a.cols; ++j) {
      double sum = 0;
      for (size_t k = 0; k < svd.s.size(); ++k) {
        sum += double{svd.u.Row(i)[k]} * double{svd.s[k]} * double{svd.vt.Row(k)[j]};
      }
      worst = std::max(worst, std::fabs(sum - double{a.Row(i)[j]}));
    }
  }
  return worst;
}

TEST(ExactSvd, FindsThePlantedSpectrum) {
  for (const Size& size : kSizes) {
    const std::vector<double> spectrum = Geometric(std::min(size.rows, size.cols), 0.8);
    const Mat<float> a = WithSpectrum(size.rows, size.cols, spectrum, 3);
    const Svd svd = ValueOrDie(ExactSvd(a.view()));
    const double tolerance = Tolerance(size.rows, size.cols);
    ASSERT_EQ(svd.s.size(), spectrum.size());
    for (size_t k = 0; k < spectrum.size(); ++k) EXPECT_NEAR(double{svd.s[k]}, spectrum[k], tolerance) << k;
    EXPECT_LT(Skew(svd.vt.view()), tolerance);
    EXPECT_LT(Skew(Transposed(svd.u.view()).view()), tolerance);
    EXPECT_LT(WorstRebuilt(svd, a.view()), tolerance);
  }
}

TEST(ExactSvd, TakesZerosAndDeficientRanks) {
  const Svd zero = ValueOrDie(ExactSvd(Mat<float>(9, 4).view()));
  for (const float s : zero.s.span()) EXPECT_EQ(s, 0.0F);
  EXPECT_LT(Skew(zero.vt.view()), Tolerance(9, 4));
  const Mat<float> a = WithSpectrum(40, 30, {2.0, 1.0, 0.5}, 5);
  const Svd svd = ValueOrDie(ExactSvd(a.view()));
  EXPECT_NEAR(double{svd.s[2]}, 0.5, Tolerance(40, 30));
  for (size_t k = 3; k < 30; ++k) EXPECT_LT(double{svd.s[k]}, 2 * Tolerance(40, 30));
}

TEST(ExactSvd, ReadsAViewWithinALargerMatrix) {
  Mat<float> outer = RandomMatrix(20, 50, 7);
  const MatView<const float> inner(outer.Row(3) + 5, 12, 30, 50);
  EXPECT_LT(WorstRebuilt(ValueOrDie(ExactSvd(inner)), inner), 8 * Tolerance(12, 30));
}

TEST(Factor, RefusesWhatHasNoNumbers) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    Mat<float> a = RandomMatrix(6, 3, 1);
    a.Row(4)[2] = bad;
    ExpectRefusal(ExactSvd(a.view()), StatusCode::kInvalidArgument, {"not finite", "row 4", "column 2"});
    EXPECT_EQ(OrthonormalizeColumns(a.view()).code(), StatusCode::kInvalidArgument);
  }
  ExpectRefusal(ExactSvd(Mat<float>(0, 5).view()), StatusCode::kInvalidArgument, {"empty", "0 x 5"});
  Mat<double> symmetric(2, 2);
  symmetric.Row(0)[1] = std::numeric_limits<double>::quiet_NaN();
  ExpectRefusal(EigenOfSymmetric(symmetric.view(), EigenPart::kValues), StatusCode::kInvalidArgument, {"not finite"});
  ExpectRefusal(EigenOfSymmetric(MatView<const double>(nullptr, 30001, 30001), EigenPart::kValues),
                StatusCode::kUnsupported, {"30001", "30000"});
}

TEST(OrthonormalizeColumns, SpansTheColumnsItIsGiven) {
  for (const Size& size : std::vector<Size>{{1, 1}, {50, 1}, {50, 20}, {300, 42}, {33, 33}}) {
    const Mat<float> a = RandomMatrix(size.rows, size.cols, 11);
    Mat<float> q = RandomMatrix(size.rows, size.cols, 11);
    DF_ASSERT_OK(OrthonormalizeColumns(q.view()));
    const double tolerance = 4 * Tolerance(size.rows, size.cols);
    EXPECT_LT(Skew(Transposed(q.view()).view()), tolerance);
    Mat<float> inner(size.cols, size.cols), rest = RandomMatrix(size.rows, size.cols, 11);
    AddTransposedProduct(q.view(), a.view(), inner.view());
    SubtractProduct(q.view(), inner.view(), rest.view());  // a - q q^T a
    for (size_t i = 0; i < size.rows * size.cols; ++i) EXPECT_NEAR(double{rest.Row(0)[i]}, 0, 8 * tolerance);
  }
}

TEST(OrthonormalizeColumns, FillsUpADeficientRank) {
  Mat<float> q = WithSpectrum(60, 10, {3.0, 1.0}, 13);
  DF_ASSERT_OK(OrthonormalizeColumns(q.view()));
  EXPECT_LT(Skew(Transposed(q.view()).view()), Tolerance(60, 10));
  Mat<float> zero(8, 3);
  DF_ASSERT_OK(OrthonormalizeColumns(zero.view()));
  EXPECT_LT(Skew(Transposed(zero.view()).view()), Tolerance(8, 3));
}

TEST(EigenOfSymmetric, FindsTheSquaresOfTheSpectrumFromTheGram) {
  ThreadPool pool(2);
  for (const Size& size : std::vector<Size>{{70, 40}, {40, 70}, {1, 9}, {9, 1}, {600, 520}}) {
    const std::vector<double> spectrum = Geometric(std::min<size_t>({size.rows, size.cols, 12}), 0.5);
    const Mat<float> a = WithSpectrum(size.rows, size.cols, spectrum, 17);
    const Mat<double> gram = Gram(pool, a.view());
    const SymmetricEigen eigen = ValueOrDie(EigenOfSymmetric(gram.view(), EigenPart::kVectors));
    const SymmetricEigen values = ValueOrDie(EigenOfSymmetric(gram.view(), EigenPart::kValues));
    const size_t n = gram.rows();
    ASSERT_EQ(n, std::min(size.rows, size.cols));
    for (size_t k = 0; k < spectrum.size(); ++k) {
      // a itself is rounded to f32: its values move by up to 2^-24 sqrt(m n) of an entry
      EXPECT_NEAR(std::sqrt(eigen.values[n - 1 - k]), spectrum[k], Tolerance(size.rows, size.cols)) << k;
      EXPECT_NEAR(values.values[n - 1 - k], eigen.values[n - 1 - k], 1e-13);
    }
    double worst = 0;  // |G v - lambda v|
    for (size_t i = 0; i < n; i += 7) {
      for (size_t row = 0; row < n; ++row) {
        double sum = -eigen.values[i] * eigen.vectors.Row(i)[row];
        for (size_t col = 0; col < n; ++col) sum += gram.Row(row)[col] * eigen.vectors.Row(i)[col];
        worst = std::max(worst, std::fabs(sum));
      }
    }
    EXPECT_LT(worst, static_cast<double>(n) * 0x1.0p-50);
    EXPECT_EQ(values.vectors.rows(), 0U);
  }
}

TEST(Gram, IsTheSameWithAnyNumberOfThreads) {
  const Mat<float> a = RandomMatrix(1100, 700, 19);
  ThreadPool one(1), three(3);
  const Mat<double> first = Gram(one, a.view()), second = Gram(three, a.view());
  EXPECT_EQ(std::memcmp(first.Row(0), second.Row(0), first.size_bytes()), 0);
}

}  // namespace
}  // namespace df::linalg
