#include "linalg/range_finder.h"

#include <gtest/gtest.h>

#include <cmath>

#include "linalg/factor.h"
#include "linalg/linalg_fixture.h"
#include "linalg/products.h"
#include "testing/refusal.h"

namespace df::linalg {
namespace {

// Largest entry of |q^T q - 1|.
double OrthonormalityError(MatView<const float> q) {
  double worst = 0;
  for (size_t i = 0; i < q.cols; ++i) {
    for (size_t j = 0; j <= i; ++j) {
      double inner = 0;
      for (size_t row = 0; row < q.rows; ++row) inner += double{q.Row(row)[i]} * double{q.Row(row)[j]};
      worst = std::max(worst, std::fabs(inner - (i == j ? 1.0 : 0.0)));
    }
  }
  return worst;
}

TEST(OrthonormalizeByGram, KeepsTheSpanOfIllConditionedColumns) {
  ThreadPool pool(2);
  // Condition 1e5; the columns of a are combinations of all its left vectors.
  const Mat<float> a = WithSpectrum(400, 24, Geometric(24, std::pow(1e-5, 1.0 / 23)), 1);
  Mat<float> y(400, 24);
  for (size_t row = 0; row < 400; ++row) std::copy_n(a.Row(row), 24, y.Row(row));
  DF_ASSERT_OK(OrthonormalizeByGram(pool, y.view()));
  EXPECT_LT(OrthonormalityError(y.view()), 24 * 0x1p-22);
  // What q q^T a misses of a is rounding of a's largest part.
  Mat<float> inner(24, 24), rest(400, 24);
  AddTransposedProduct(y.view(), a.view(), inner.view());
  for (size_t row = 0; row < 400; ++row) std::copy_n(a.Row(row), 24, rest.Row(row));
  SubtractProduct(y.view(), inner.view(), rest.view());
  EXPECT_LT(std::sqrt(SumOfSquares(rest.view())), 24 * 0x1p-24 * std::sqrt(SumOfSquares(a.view())));
}

TEST(OrthonormalizeByGram, MakesColumnsBeyondTheRankZero) {
  ThreadPool pool(2);
  Mat<float> y = WithSpectrum(200, 8, {1, 1, 1}, 2);
  DF_ASSERT_OK(OrthonormalizeByGram(pool, y.view()));
  EXPECT_NEAR(SumOfSquares(y.view()), 3, 1e-3);
  Mat<float> zero(20, 3);
  DF_ASSERT_OK(OrthonormalizeByGram(pool, zero.view()));
  EXPECT_EQ(SumOfSquares(zero.view()), 0);
}

TEST(RangeFinder, HoldsTheLeadingPartOfDecayingSpectra) {
  ThreadPool pool(2);
  // The flatter the spectrum, the less two power iterations tell its values apart, and the less it matters.
  for (const auto& [ratio, tolerance] : {std::pair(0.8, 1e-4), std::pair(0.95, 2e-3), std::pair(0.99, 5e-2)}) {
    const std::vector<double> spectrum = Geometric(150, ratio);
    const Mat<float> a = WithSpectrum(180, 260, spectrum, 3);
    RangeFinder range(pool, a.view(), {.block = 20, .max_columns = 50});
    while (!range.is_full()) DF_ASSERT_OK(range.Grow());
    ASSERT_EQ(range.columns(), 50U);
    EXPECT_LT(OrthonormalityError(range.q()), 50 * 0x1p-22);
    // What 50 columns hold of the squares is at most what the best 50 do, and nearly that.
    double best = 0;
    for (size_t k = 0; k < 50; ++k) best += spectrum[k] * spectrum[k];
    const double held = SumOfSquares(range.b());
    EXPECT_LT(held, best * (1 + 1e-5));
    EXPECT_GT(held, best * (1 - tolerance));
    // The leading 30 values are those of A.
    const Svd svd = testing::ValueOrDie(ExactSvd(range.b()));
    for (size_t k = 0; k < 30; ++k) EXPECT_NEAR(svd.s[k], spectrum[k], tolerance * spectrum[k]) << ratio << " " << k;
  }
}

TEST(RangeFinder, FindsAMatrixOfLowRankWhole) {
  ThreadPool pool(2);
  const Mat<float> a = WithSpectrum(300, 200, {5, 4, 3, 2, 1}, 4);
  RangeFinder range(pool, a.view(), {.block = 16, .max_columns = 32});
  DF_ASSERT_OK(range.Grow());
  EXPECT_NEAR(SumOfSquares(range.b()), SumOfSquares(a.view()), 1e-5 * SumOfSquares(a.view()));
  DF_ASSERT_OK(range.Grow());  // there is nothing left: columns of rounding or 0
  EXPECT_NEAR(SumOfSquares(range.b()), SumOfSquares(a.view()), 1e-5 * SumOfSquares(a.view()));
  DF_ASSERT_OK(range.Grow());
  EXPECT_TRUE(range.is_full());
}

TEST(RangeFinder, ThreadsDoNotChangeABit) {
  const Mat<float> a = RandomMatrix(700, 300, 5);
  std::vector<float> first;
  for (const size_t n_threads : {1U, 2U, 5U}) {
    ThreadPool pool(n_threads);
    RangeFinder range(pool, a.view(), {.block = 16, .max_columns = 40});
    while (!range.is_full()) DF_ASSERT_OK(range.Grow());
    const std::vector<float> b(range.b().data, range.b().data + 40 * 300);
    if (first.empty()) first = b;
    EXPECT_EQ(first, b);
    EXPECT_EQ(EstimateFourthPowers(pool, a.view(), 8, 1), EstimateFourthPowers(pool, a.view(), 8, 1));
  }
}

TEST(RangeFinder, RefusesAMatrixThatIsNotFinite) {
  ThreadPool pool(1);
  Mat<float> a = RandomMatrix(40, 60, 6);
  a.Row(7)[9] = NAN;
  RangeFinder range(pool, a.view(), {.block = 8, .max_columns = 8});
  testing::ExpectRefusal(range.Grow(), StatusCode::kInvalidArgument, {"not finite"});
}

TEST(FourthPowers, AreEstimatedWithinTheirDeviation) {
  ThreadPool pool(2);
  const std::vector<double> spectrum = Geometric(100, 0.97);
  const Mat<float> a = WithSpectrum(120, 200, spectrum, 7);
  double sum = 0;
  for (const double s : spectrum) sum += std::pow(s, 4);
  EXPECT_NEAR(EstimateFourthPowers(pool, a.view(), 64, 1), sum, 5 * std::sqrt(2.0 / 64) * sum);
}

}  // namespace
}  // namespace df::linalg
