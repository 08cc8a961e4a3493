#include "linalg/products64.h"

#include <gtest/gtest.h>

#include <cstring>
#include <utility>

#include "linalg/linalg_fixture.h"

namespace df::linalg {
namespace {

// Sums in f64 of products of f32 differ from these by at most n 2^-53 times the sum of absolute values, here below n.
void ExpectGram(const Mat<float>& a, GramOf side) {
  const Mat<double> gram = Gram(a.view(), side);
  const bool of_columns = side == GramOf::kColumns;
  const size_t k = of_columns ? a.cols() : a.rows(), length = of_columns ? a.rows() : a.cols();
  ASSERT_EQ(gram.rows(), k);
  ASSERT_EQ(gram.cols(), k);
  for (size_t i = 0; i < k; ++i) {
    for (size_t j = 0; j < k; ++j) {
      double expected = 0;
      for (size_t n = 0; n < length; ++n) {
        expected += of_columns ? double{a.Row(n)[i]} * double{a.Row(n)[j]} : double{a.Row(i)[n]} * double{a.Row(j)[n]};
      }
      const auto bound = static_cast<double>(length * length) * 0x1.0p-53;
      EXPECT_NEAR(gram.Row(i)[j], expected, bound) << i << ", " << j;
    }
  }
}

TEST(Products64, GramIsTheInnerProductsOfColumnsOrRows) {
  for (const auto& [rows, cols] : {std::pair<size_t, size_t>{1, 1}, {7, 3}, {3, 7}, {5000, 16}, {16, 5000}, {70, 70}}) {
    const Mat<float> a = RandomMatrix(rows, cols, 7);
    ExpectGram(a, GramOf::kColumns);
    ExpectGram(a, GramOf::kRows);
  }
}

TEST(Products64, ProductsAgreeWithTheirDefinitionTurnedOrNot) {
  const size_t m = 5, k = 7, n = 4;
  Mat<double> a(m, k), b(k, n);
  for (size_t i = 0; i < m * k; ++i) a.Row(0)[i] = RandomUnit(1, i) - 0.5;
  for (size_t i = 0; i < k * n; ++i) b.Row(0)[i] = RandomUnit(2, i) - 0.5;
  Mat<double> turned_a(k, m), turned_b(n, k), expected(m, n);
  for (size_t i = 0; i < m; ++i) {
    for (size_t j = 0; j < k; ++j) turned_a.Row(j)[i] = a.Row(i)[j];
  }
  for (size_t i = 0; i < k; ++i) {
    for (size_t j = 0; j < n; ++j) turned_b.Row(j)[i] = b.Row(i)[j];
  }
  for (size_t i = 0; i < m; ++i) {
    for (size_t j = 0; j < n; ++j) {
      for (size_t l = 0; l < k; ++l) expected.Row(i)[j] += a.Row(i)[l] * b.Row(l)[j];
    }
  }
  for (const Mat<double>& c : {Product(a.view(), b.view()), ProductTransposed(a.view(), turned_b.view()),
                               TransposedProduct(turned_a.view(), b.view())}) {
    for (size_t i = 0; i < m * n; ++i) EXPECT_NEAR(c.view().data[i], expected.view().data[i], 1e-14) << i;
  }
}

// Rows beyond one tile; the same bits with any number of threads.
TEST(Products64, OnAllThreadsIsTheProductOfOne) {
  const size_t m = 300, k = 33, n = 17;
  Mat<double> a(m, k), b(k, n), first;
  for (size_t i = 0; i < m * k; ++i) a.Row(0)[i] = RandomUnit(1, i) - 0.5;
  for (size_t i = 0; i < k * n; ++i) b.Row(0)[i] = RandomUnit(2, i) - 0.5;
  const Mat<double> expected = Product(a.view(), b.view());
  for (const size_t n_threads : {1U, 3U}) {
    ThreadPool pool(n_threads);
    Mat<double> c(m, n);
    c.Row(7)[3] = 1e9;  // is written over
    Multiply(pool, a.view(), b.view(), c.view());
    for (size_t i = 0; i < m * n; ++i) EXPECT_NEAR(c.Row(0)[i], expected.view().data[i], 1e-13) << i;
    if (first.rows() == 0) {
      first = std::move(c);
    } else {
      EXPECT_EQ(std::memcmp(first.Row(0), c.Row(0), m * n * sizeof(double)), 0);
    }
  }
}

}  // namespace
}  // namespace df::linalg
