#include "linalg/partial_eigen.h"

#include <gtest/gtest.h>

#include <cmath>

#include "linalg/factor.h"
#include "linalg/linalg_fixture.h"
#include "testing/refusal.h"

namespace df::linalg {
namespace {

// A symmetric matrix with these eigenvalues.
Mat<double> WithEigenvalues(const std::vector<double>& values, uint64_t seed) {
  const size_t n = values.size();
  const Mat<double> q = OrthonormalRows(n, n, seed);
  Mat<double> a(n, n);
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < n; ++j) {
      for (size_t k = 0; k < n; ++k) a.Row(i)[j] += q.Row(k)[i] * values[k] * q.Row(k)[j];
    }
  }
  return a;
}

Mat<double> Clone(const Mat<double>& a) {
  Mat<double> copy(a.rows(), a.cols());
  std::copy_n(a.Row(0), a.rows() * a.cols(), copy.Row(0));
  return copy;
}

// Largest entry of |a v - value v| and of |v v^T - 1|.
double Error(const Mat<double>& a, const PartialEigen& eigen) {
  double worst = 0;
  for (size_t i = 0; i < eigen.vectors.rows(); ++i) {
    const double* v = eigen.vectors.Row(i);
    for (size_t row = 0; row < a.rows(); ++row) {
      double sum = -eigen.values[eigen.range.first + i] * v[row];
      for (size_t j = 0; j < a.cols(); ++j) sum += a.Row(row)[j] * v[j];
      worst = std::max(worst, std::fabs(sum));
    }
    for (size_t k = 0; k <= i; ++k) {
      double inner = i == k ? -1 : 0;
      for (size_t j = 0; j < a.cols(); ++j) inner += v[j] * eigen.vectors.Row(k)[j];
      worst = std::max(worst, std::fabs(inner));
    }
  }
  return worst;
}

TEST(PartialEigen, HasAllValuesAndTheVectorsAskedFor) {
  ThreadPool pool(2);
  std::vector<double> values(70);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i * i) / 100 - 3;
  const Mat<double> a = WithEigenvalues(values, 1);
  for (const auto& [first, end] : {std::pair(0U, 70U), std::pair(60U, 70U), std::pair(20U, 21U), std::pair(5U, 5U)}) {
    const EigenRange wanted{first, end};
    const PartialEigen eigen = testing::ValueOrDie(EigenOfSymmetric(pool, Clone(a), [&](std::span<const double> found) {
      EXPECT_TRUE(std::is_sorted(found.begin(), found.end()));
      return wanted;
    }));
    for (size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(eigen.values[i], values[i], 1e-12);
    EXPECT_EQ(eigen.vectors.rows(), end - first);
    EXPECT_LT(Error(a, eigen), 1e-11);
  }
}

TEST(PartialEigen, TakesClustersZerosAndOneElement) {
  ThreadPool pool(2);
  const auto all = [](std::span<const double> values) { return EigenRange{0, values.size()}; };
  for (const std::vector<double>& values :
       {std::vector<double>(40, 1.0), std::vector<double>(40, 0.0), std::vector<double>{5}}) {
    const Mat<double> a = WithEigenvalues(values, 2);
    const PartialEigen eigen = testing::ValueOrDie(EigenOfSymmetric(pool, Clone(a), all));
    EXPECT_LT(Error(a, eigen), 1e-12);
  }
  std::vector<double> mixed(60, 0.0);
  std::fill_n(mixed.begin(), 20, 2.0);
  const Mat<double> a = WithEigenvalues(mixed, 3);
  const PartialEigen eigen =
      testing::ValueOrDie(EigenOfSymmetric(pool, Clone(a), [](std::span<const double>) { return EigenRange{40, 60}; }));
  EXPECT_LT(Error(a, eigen), 1e-12);
}

TEST(PartialEigenSlow, LargeOnesAreTurnedBackOnAllThreadsToTheSameBits) {
  const Mat<float> b = RandomMatrix(600, 600, 4);
  Mat<double> a(600, 600);
  for (size_t i = 0; i < 600; ++i) {
    for (size_t j = 0; j < 600; ++j) a.Row(i)[j] = double{b.Row(i)[j]} + double{b.Row(j)[i]};
  }
  std::vector<double> first;
  for (const size_t n_threads : {1U, 3U}) {
    ThreadPool pool(n_threads);
    const PartialEigen eigen = testing::ValueOrDie(
        EigenOfSymmetric(pool, Clone(a), [](std::span<const double>) { return EigenRange{200, 600}; }));
    EXPECT_LT(Error(a, eigen), 600 * 0x1p-50 * 60);
    const std::vector<double> vectors(eigen.vectors.Row(0), eigen.vectors.Row(0) + 400 * 600);
    if (first.empty()) first = vectors;
    EXPECT_EQ(first, vectors);
    const SymmetricEigen whole = testing::ValueOrDie(EigenOfSymmetric(a.view(), EigenPart::kValues));
    for (size_t i = 0; i < 600; ++i) EXPECT_NEAR(eigen.values[i], whole.values[i], 1e-10);
  }
}

TEST(PartialEigen, RefusesWhatHasNoEigenvalues) {
  ThreadPool pool(1);
  const auto none = [](std::span<const double>) { return EigenRange{}; };
  testing::ExpectRefusal(EigenOfSymmetric(pool, Mat<double>(), none), StatusCode::kUnsupported, {"0 rows"});
  Mat<double> a(3, 3);
  a.Row(1)[2] = NAN;
  testing::ExpectRefusal(EigenOfSymmetric(pool, std::move(a), none), StatusCode::kInvalidArgument,
                         {"row 1", "column 2"});
}

}  // namespace
}  // namespace df::linalg
