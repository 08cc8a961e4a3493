#include "linalg/conjugate_gradients.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "linalg/factor.h"
#include "linalg/linalg_fixture.h"
#include "linalg/products.h"
#include "testing/status_matchers.h"

namespace df::linalg {
namespace {

// B^T B + 1e-2 of its mean diagonal, columns of B of sizes from 0.1 to 10.
Mat<float> Positive(size_t n, uint64_t seed) {
  Mat<float> b = RandomMatrix(n, n, seed), a(n, n);
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < n; ++j) {
      b.Row(i)[j] *= static_cast<float>(0.1 * std::pow(100.0, static_cast<double>(j) / static_cast<double>(n)));
    }
  }
  AddTransposedProduct(b.view(), b.view(), a.view());
  double trace = 0;
  for (size_t i = 0; i < n; ++i) trace += double{a.Row(i)[i]};
  for (size_t i = 0; i < n; ++i) a.Row(i)[i] += static_cast<float>(1e-2 * trace / static_cast<double>(n));
  return a;
}

double Rest(const Mat<float>& a, const std::vector<double>& b, const std::vector<double>& x) {
  double rest = 0, all = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    double sum = b[i];
    for (size_t j = 0; j < b.size(); ++j) sum -= double{a.Row(i)[j]} * x[j];
    rest += sum * sum;
    all += b[i] * b[i];
  }
  return std::sqrt(rest / all);
}

double Energy(const Mat<float>& a, const std::vector<double>& b, const std::vector<double>& x) {
  double energy = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    for (size_t j = 0; j < b.size(); ++j) energy += 0.5 * x[i] * double{a.Row(i)[j]} * x[j];
    energy -= b[i] * x[i];
  }
  return energy;
}

std::vector<double> RightSide(size_t n) {
  std::vector<double> b(n);
  for (size_t i = 0; i < n; ++i) b[i] = RandomUnit(5, i) - 0.3;
  return b;
}

TEST(ConjugateGradients, SolveToTheirTolerance) {
  ThreadPool pool(2);
  for (const size_t n : {size_t{1}, size_t{7}, size_t{40}, size_t{129}}) {
    const Mat<float> a = Positive(n, n);
    const std::vector<double> b = RightSide(n);
    std::vector<double> x(n, 0.1);
    EXPECT_LT(SolveByConjugateGradients(pool, a.view(), b, x, {.max_steps = 1000, .tolerance = 1e-9}), 1000U);
    EXPECT_LT(Rest(a, b, x), 2e-9) << n;
  }
}

TEST(ConjugateGradients, LowerTheEnergyWithEveryStep) {
  ThreadPool pool(1);
  const Mat<float> a = Positive(60, 3);
  const std::vector<double> b = RightSide(60);
  double last = Energy(a, b, std::vector<double>(60, 0.2));
  for (size_t steps = 1; steps < 12; ++steps) {
    std::vector<double> x(60, 0.2);
    EXPECT_EQ(SolveByConjugateGradients(pool, a.view(), b, x, {.max_steps = steps, .tolerance = 0}), steps);
    EXPECT_LT(Energy(a, b, x), last);
    last = Energy(a, b, x);
  }
}

TEST(ConjugateGradients, LeaveWhatTheMatrixDoesNotTouch) {
  ThreadPool pool(1);
  Mat<float> a(3, 3);
  a.Row(0)[0] = 2;
  a.Row(2)[2] = 4;
  const std::vector<double> b = {2, 0, 2};
  std::vector<double> x = {0, 7, 0};
  SolveByConjugateGradients(pool, a.view(), b, x);
  EXPECT_NEAR(x[0], 1, 1e-9);
  EXPECT_EQ(x[1], 7);
  EXPECT_NEAR(x[2], 0.5, 1e-9);
}

TEST(ConjugateGradients, AreTheSameWithAnyNumberOfThreads) {
  const Mat<float> a = Positive(300, 4);
  const std::vector<double> b = RightSide(300);
  std::vector<double> first(300), second(300);
  ThreadPool one(1), three(3);
  SolveByConjugateGradients(one, a.view(), b, first);
  SolveByConjugateGradients(three, a.view(), b, second);
  EXPECT_EQ(first, second);
}

TEST(Cholesky, RebuildsTheMatrixAndSolvesWithIt) {
  for (const size_t n : {size_t{1}, size_t{9}, size_t{130}}) {
    const Mat<float> a = Positive(n, n + 1);
    Mat<float> lower(n, n);
    std::copy_n(a.Row(0), n * n, lower.Row(0));
    DF_ASSERT_OK(Cholesky(lower.view()));
    double trace = 0;
    for (size_t i = 0; i < n; ++i) trace += double{a.Row(i)[i]};
    Mat<float> rebuilt(n, n);
    AddProductTransposed(lower.view(), lower.view(), rebuilt.view());
    // |L L^T - A| <= c n 2^-24 |L| |L^T| (Higham, theorem 10.3), the diagonals of which sum to the trace
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; j < n; ++j) {
        EXPECT_NEAR(double{rebuilt.Row(i)[j]}, double{a.Row(i)[j]}, 4 * 0x1p-24 * static_cast<double>(n) * trace);
        if (j > i) {
          EXPECT_EQ(lower.Row(i)[j], 0.0F);
        }
      }
    }
    for (const bool transposed : {true, false}) {
      Mat<float> b = RandomMatrix(5, n, 21), product(5, n);
      (transposed ? SolveTransposedLower : SolveLower)(lower.view(), b.view());
      if (transposed) {
        AddProductTransposed(b.view(), lower.view(), product.view());
      } else {
        AddProduct(b.view(), lower.view(), product.view());
      }
      const Mat<float> expected = RandomMatrix(5, n, 21);
      for (size_t i = 0; i < 5 * n; ++i) EXPECT_NEAR(product.Row(0)[i], expected.Row(0)[i], 1e-3) << n;
    }
  }
}

TEST(Cholesky, RefusesAMatrixThatIsNotPositive) {
  Mat<float> a(2, 2);
  a.Row(0)[0] = 1;
  a.Row(1)[1] = -1;
  const Status status = Cholesky(a.view());
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("row 1"), std::string::npos) << status.message();
}

TEST(Products, OfManyThreadsAreThoseOfOne) {
  const Mat<float> a = RandomMatrix(90, 300, 1), b = RandomMatrix(90, 70, 2);
  Mat<float> first(300, 70), second(300, 70);
  ThreadPool one(1), three(3);
  AddTransposedProduct(one, a.view(), b.view(), first.view());
  AddTransposedProduct(three, a.view(), b.view(), second.view());
  EXPECT_EQ(std::memcmp(first.Row(0), second.Row(0), first.size_bytes()), 0);
  for (size_t i = 0; i < 300; i += 17) {
    for (size_t j = 0; j < 70; j += 13) {
      double sum = 0;
      for (size_t k = 0; k < 90; ++k) sum += double{a.Row(k)[i]} * double{b.Row(k)[j]};
      EXPECT_NEAR(double{first.Row(i)[j]}, sum, 90 * 90 * 0x1p-24);
    }
  }
}

}  // namespace
}  // namespace df::linalg
