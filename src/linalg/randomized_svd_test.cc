#include "linalg/randomized_svd.h"

#include <gtest/gtest.h>

#include <limits>
#include <numbers>

#include "linalg/linalg_fixture.h"
#include "linalg/products.h"
#include "testing/refusal.h"
#include "testing/status_matchers.h"

namespace df::linalg {
namespace {

using testing::ExpectRefusal;
using testing::ValueOrDie;

struct Case {
  size_t rows, cols;
  std::vector<double> spectrum;
};

std::vector<double> Harmonic(size_t n) {
  std::vector<double> spectrum(n);
  for (size_t k = 0; k < n; ++k) spectrum[k] = 1.0 / static_cast<double>(k + 1);
  return spectrum;
}

const std::vector<Case>& Cases() {
  static const std::vector<Case> cases = {{120, 90, Geometric(90, 0.9)},
                                          {90, 120, Harmonic(90)},
                                          {700, 60, Harmonic(60)},
                                          {60, 700, Geometric(60, 0.7)},
                                          {200, 200, std::vector<double>(200, 1.0)}};
  return cases;
}

// Corollary 10.10 of the paper, and theorem 9.3 for the cut: what |A - A_k| is in the mean at most.
double Bound(const std::vector<double>& spectrum, const RandomizedSvdOptions& options) {
  const size_t k = options.rank;
  if (k >= spectrum.size()) return 0;
  const auto p = static_cast<double>(options.oversampling), rank = static_cast<double>(k);
  const double power = 2 * static_cast<double>(options.power_iterations) + 1;
  double tail = 0;
  for (size_t j = k; j < spectrum.size(); ++j) tail += std::pow(spectrum[j], 2 * power);
  const double first = (1 + std::sqrt(rank / (p - 1))) * std::pow(spectrum[k], power);
  return std::pow(first + std::numbers::e * std::sqrt(rank + p) / p * std::sqrt(tail), 1 / power) + spectrum[k];
}

// A - u s vt.
Mat<float> Rest(MatView<const float> a, const Svd& svd) {
  Mat<float> scaled(svd.s.size(), a.cols), rest(a.rows, a.cols);
  for (size_t k = 0; k < svd.s.size(); ++k) {
    for (size_t j = 0; j < a.cols; ++j) scaled.Row(k)[j] = svd.s[k] * svd.vt.Row(k)[j];
  }
  for (size_t i = 0; i < a.rows; ++i) std::copy_n(a.Row(i), a.cols, rest.Row(i));
  SubtractProduct(svd.u.view(), scaled.view(), rest.view());
  return rest;
}

TEST(RandomizedSvd, StaysWithinTheBoundOfItsSource) {
  ThreadPool pool(2);
  for (const Case& c : Cases()) {
    const Mat<float> a = WithSpectrum(c.rows, c.cols, c.spectrum, 23);
    for (const size_t q : {size_t{0}, size_t{1}, size_t{2}}) {
      const RandomizedSvdOptions options{.rank = 12, .oversampling = 8, .power_iterations = q, .seed = 1};
      const TruncatedSvd found = ValueOrDie(RandomizedSvd(pool, RowsOf(a.view()), options));
      const Svd rest = ValueOrDie(ExactSvd(Rest(a.view(), found.svd).view()));  // LAPACK's own is the oracle
      const double noise = static_cast<double>(c.rows + c.cols) * 0x1.0p-24;
      EXPECT_LE(double{rest.s[0]}, Bound(c.spectrum, options) + noise) << c.rows << " x " << c.cols << ", q " << q;
    }
  }
}

TEST(RandomizedSvd, FindsTheValuesThatStandOut) {
  ThreadPool pool(2);
  for (const Case& c : Cases()) {
    const Mat<float> a = WithSpectrum(c.rows, c.cols, c.spectrum, 29);
    const TruncatedSvd found = ValueOrDie(RandomizedSvd(pool, RowsOf(a.view()), {.rank = 10}));
    double sum = 0;
    for (const double s : c.spectrum) sum += s * s;
    EXPECT_NEAR(found.sum_of_squares, sum, 1e-5 * sum);
    for (size_t k = 0; k < 10; ++k) {
      EXPECT_LE(double{found.svd.s[k]}, c.spectrum[k] * (1 + 1e-5));
      // (s_21 / s_k)^(2q + 1) of a value is lost to what follows the subspace of 20; a flat spectrum has no order
      EXPECT_GE(double{found.svd.s[k]}, c.spectrum[k] * (1 - std::pow(c.spectrum[20] / c.spectrum[k], 5)) - 1e-5) << k;
    }
  }
}

TEST(RandomizedSvd, IsExactForALowRank) {
  ThreadPool pool(2);
  const std::vector<double> spectrum = {5.0, 1.0, 0.01, 1e-4};  // over more than the square root of f32's precision
  const Mat<float> a = WithSpectrum(150, 220, spectrum, 31);
  const TruncatedSvd found = ValueOrDie(RandomizedSvd(pool, RowsOf(a.view()), {.rank = 6}));
  const double noise = 370 * 5.0 * 0x1.0p-24;  // entries of A are rounded to f32
  for (size_t k = 0; k < 6; ++k) EXPECT_NEAR(double{found.svd.s[k]}, k < 4 ? spectrum[k] : 0, noise) << k;
  const Mat<float> rest = Rest(a.view(), found.svd);
  EXPECT_LT(std::sqrt(SumOfSquares(rest.view())), noise);
}

TEST(RandomizedSvd, TakesVectorsZerosAndMoreRankThanThereIs) {
  ThreadPool pool(3);
  for (const auto& [rows, cols] : std::vector<std::pair<size_t, size_t>>{{1, 40}, {40, 1}, {1, 1}, {3, 7}}) {
    const Mat<float> a = RandomMatrix(rows, cols, 37);
    const TruncatedSvd found = ValueOrDie(RandomizedSvd(pool, RowsOf(a.view()), {.rank = 99}));
    EXPECT_EQ(found.svd.s.size(), std::min(rows, cols));
    EXPECT_LT(std::sqrt(SumOfSquares(Rest(a.view(), found.svd).view())), 1e-5);
  }
  const Mat<float> zero(20, 30);
  const TruncatedSvd found = ValueOrDie(RandomizedSvd(pool, RowsOf(zero.view()), {.rank = 4}));
  EXPECT_EQ(found.sum_of_squares, 0);
  for (const float s : found.svd.s.span()) EXPECT_EQ(s, 0.0F);
}

TEST(RandomizedSvd, GivesTheSameBitsWithAnyNumberOfThreads) {
  const Mat<float> a = RandomMatrix(1500, 300, 41);
  ThreadPool one(1), four(4);
  const TruncatedSvd first = ValueOrDie(RandomizedSvd(one, RowsOf(a.view()), {.rank = 20}));
  const TruncatedSvd second = ValueOrDie(RandomizedSvd(four, RowsOf(a.view()), {.rank = 20}));
  EXPECT_EQ(std::memcmp(first.svd.u.Row(0), second.svd.u.Row(0), first.svd.u.size_bytes()), 0);
  EXPECT_EQ(std::memcmp(first.svd.vt.Row(0), second.svd.vt.Row(0), first.svd.vt.size_bytes()), 0);
  EXPECT_EQ(first.sum_of_squares, second.sum_of_squares);
}

TEST(RandomizedSvd, RefusesWhatHasNoNumbers) {
  ThreadPool pool(2);
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    Mat<float> a = RandomMatrix(30, 20, 43);
    a.Row(29)[0] = bad;
    ExpectRefusal(RandomizedSvd(pool, RowsOf(a.view()), {}), StatusCode::kInvalidArgument, {"30 x 20", "not finite"});
  }
  Mat<float> huge(4, 4);
  huge.Row(0)[0] = huge.Row(1)[1] = std::numeric_limits<float>::max();
  EXPECT_EQ(RandomizedSvd(pool, RowsOf(huge.view()), {}).status().code(), StatusCode::kInvalidArgument);
  ExpectRefusal(RandomizedSvd(pool, {.rows = 0, .cols = 3}, {}), StatusCode::kInvalidArgument, {"empty", "0 x 3"});
  ExpectRefusal(RandomizedSvd(pool, {.rows = size_t{1} << 32, .cols = 3}, {}), StatusCode::kUnsupported, {"LAPACK"});
}

}  // namespace
}  // namespace df::linalg
