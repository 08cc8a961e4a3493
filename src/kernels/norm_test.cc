#include "kernels/norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>

#include "base/rng.h"
#include "kernels/target.h"

namespace df::kernels {
namespace {

Mat<float> RandomMat(size_t rows, size_t cols, uint64_t seed) {
  Mat<float> m(rows, cols);
  for (size_t i = 0; i < rows * cols; ++i) m.Row(0)[i] = static_cast<float>(RandomUnit(seed, i) * 4 - 2);
  return m;
}

Mat<float> Copy(const Mat<float>& from) {
  Mat<float> to(from.rows(), from.cols());
  std::memcpy(to.Row(0), from.Row(0), from.size_bytes());
  return to;
}

bool SameBits(const Mat<float>& a, const Mat<float>& b) { return std::memcmp(a.Row(0), b.Row(0), a.size_bytes()) == 0; }

// Half the relative error of the sum of squares (d/16 + 20 roundings in the longest chain), and 5 roundings after it.
double Tolerance(size_t d) { return 0x1.0p-24 * (static_cast<double>(d) / 16 + 30); }

void ExpectNormed(const float* x, const float* weight, const float* out, size_t d, float eps, const std::string& what) {
  double squares = 0;
  for (size_t i = 0; i < d; ++i) squares += double{x[i]} * double{x[i]};
  for (size_t i = 0; i < d; ++i) {
    const double expected =
        double{x[i]} / std::sqrt(squares / static_cast<double>(d) + double{eps}) * double{weight[i]};
    ASSERT_NEAR(double{out[i]}, expected, std::abs(expected) * Tolerance(d)) << what << " d " << d << " element " << i;
  }
}

TEST(RmsNorm, AgreesWithTheExactSumForEverySizeAndTarget) {
  for (const std::string& target : AvailableTargets()) {
    ASSERT_TRUE(SetTarget(target).ok());
    KernelContext context(2);
    for (const size_t d : {1U, 9U, 64U, 100U, 513U, 1024U, 4104U}) {
      const Mat<float> x = RandomMat(6, d, d);
      const Mat<float> weights = RandomMat(2, d, d + 1);
      Mat<float> out(6, d);
      const NormSegment segments[] = {{.begin = 0, .end = 2, .weight = weights.Row(0)},
                                      {.begin = 3, .end = 6, .weight = weights.Row(1)}};
      RmsNorm(context, segments, 1e-6F, x.view(), out.view());
      for (const size_t row : {0U, 1U, 3U, 4U, 5U}) {
        ExpectNormed(x.Row(row), weights.Row(row < 2 ? 0 : 1), out.Row(row), d, 1e-6F, target);
      }
      for (size_t i = 0; i < d; ++i) EXPECT_EQ(out.Row(2)[i], 0.0F) << "a row outside the segments was touched";
    }
  }
  ASSERT_TRUE(SetTarget("auto").ok());
}

TEST(RmsNorm, GivesTheSameBitsInPlaceAloneAndForEveryThreadCount) {
  for (const std::string& target : AvailableTargets()) {
    ASSERT_TRUE(SetTarget(target).ok());
    const size_t d = 1030;
    const Mat<float> x = RandomMat(40, d, 3);
    const Mat<float> weight = RandomMat(1, d, 4);
    Mat<float> together(40, d);
    KernelContext one(1);
    const NormSegment all = {.begin = 0, .end = 40, .weight = weight.Row(0)};
    RmsNorm(one, {&all, 1}, 1e-5F, x.view(), together.view());
    for (const size_t threads : {2U, 3U}) {
      KernelContext context(threads);
      Mat<float> in_place = Copy(x);
      RmsNorm(context, {&all, 1}, 1e-5F, in_place.view(), in_place.view());
      EXPECT_TRUE(SameBits(together, in_place)) << target << " " << threads << " threads";
    }
    Mat<float> alone(1, d);
    const NormSegment single = {.begin = 0, .end = 1, .weight = weight.Row(0)};
    RmsNorm(one, {&single, 1}, 1e-5F, x.view().Rows(17, 18), alone.view());
    EXPECT_EQ(std::memcmp(alone.Row(0), together.Row(17), d * sizeof(float)), 0) << target;
  }
  ASSERT_TRUE(SetTarget("auto").ok());
}

TEST(RmsNorm, OfZerosIsZero) {
  for (const std::string& target : AvailableTargets()) {
    ASSERT_TRUE(SetTarget(target).ok());
    KernelContext context(1);
    Mat<float> x(1, 50);
    const Mat<float> weight = RandomMat(1, 50, 1);
    const NormSegment all = {.begin = 0, .end = 1, .weight = weight.Row(0)};
    RmsNorm(context, {&all, 1}, 1e-6F, x.view(), x.view());
    for (size_t i = 0; i < 50; ++i) EXPECT_EQ(x.Row(0)[i], 0.0F);
  }
  ASSERT_TRUE(SetTarget("auto").ok());
}

TEST(AddRmsNorm, GivesTheBitsOfAddToAndRmsNorm) {
  for (const std::string& target : AvailableTargets()) {
    ASSERT_TRUE(SetTarget(target).ok());
    for (const size_t d : {1U, 18U, 64U, 1027U}) {
      const Mat<float> added = RandomMat(30, d, 5);
      const Mat<float> weight = RandomMat(1, d, 6);
      const NormSegment segments[] = {{.begin = 0, .end = 10, .weight = weight.Row(0)},
                                      {.begin = 11, .end = 30, .weight = weight.Row(0)}};
      Mat<float> expected_x = RandomMat(30, d, 7), expected(30, d);
      Mat<float> x = Copy(expected_x), out(30, d);
      const Mat<float> before = Copy(x);
      KernelContext one(1), three(3);
      AddTo(one, added.view(), expected_x.view());
      RmsNorm(one, segments, 1e-6F, expected_x.view(), expected.view());
      AddRmsNorm(three, segments, 1e-6F, added.view(), x.view(), out.view());
      EXPECT_TRUE(SameBits(out, expected)) << target << " d " << d;
      for (size_t i = 0; i < d; ++i) {
        EXPECT_EQ(x.Row(10)[i], before.Row(10)[i]) << "a row outside the segments was touched";
        EXPECT_EQ(x.Row(29)[i], expected_x.Row(29)[i]);
      }
    }
  }
  ASSERT_TRUE(SetTarget("auto").ok());
}

TEST(AddTo, AddsEveryElement) {
  for (const std::string& target : AvailableTargets()) {
    ASSERT_TRUE(SetTarget(target).ok());
    KernelContext context(2);
    const Mat<float> x = RandomMat(37, 1003, 1);
    const Mat<float> y = RandomMat(37, 1003, 2);
    Mat<float> sum = Copy(y);
    AddTo(context, x.view(), sum.view());
    for (size_t i = 0; i < 37 * 1003; ++i) ASSERT_EQ(sum.Row(0)[i], x.Row(0)[i] + y.Row(0)[i]) << target;
  }
  ASSERT_TRUE(SetTarget("auto").ok());
}

}  // namespace
}  // namespace df::kernels
