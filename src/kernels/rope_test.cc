#include "kernels/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/rng.h"
#include "kernels/target.h"

namespace df::kernels {
namespace {

std::vector<float> InverseFrequencies(size_t half, double theta) {
  std::vector<float> inv_freq(half);
  for (size_t i = 0; i < half; ++i) {
    inv_freq[i] = static_cast<float>(std::pow(theta, -static_cast<double>(i) / static_cast<double>(half)));
  }
  return inv_freq;
}

TEST(RopeAngles, AreTheCosineAndSineOfTheFloatProductUpToAMillion) {
  for (const std::string& target : AvailableTargets()) {
    ASSERT_TRUE(SetTarget(target).ok());
    const std::vector<float> slow = InverseFrequencies(64, 1e6);
    const std::vector<float> quick = InverseFrequencies(64, 1e4);
    std::vector<int32_t> positions(300);
    for (size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<int32_t>(RandomBits(1, i) % 1'000'000);
    positions[0] = 0;
    Mat<float> cos(300, 64), sin(300, 64);
    KernelContext context(3);
    const RopeSegment segments[] = {{.begin = 0, .end = 150, .inv_freq = slow.data()},
                                    {.begin = 150, .end = 300, .inv_freq = quick.data(), .magnitude = 1.25F}};
    RopeAngles(context, segments, positions, cos.view(), sin.view());
    for (size_t row = 0; row < 300; ++row) {
      const RopeSegment& segment = segments[row / 150];
      for (size_t i = 0; i < 64; ++i) {
        const float angle = static_cast<float>(positions[row]) * segment.inv_freq[i];
        const double magnitude = double{segment.magnitude};
        // f32 rounding of the value and of the product: 2^-24 each.
        ASSERT_NEAR(double{cos.Row(row)[i]}, std::cos(double{angle}) * magnitude, 0x1.0p-23 * magnitude);
        ASSERT_NEAR(double{sin.Row(row)[i]}, std::sin(double{angle}) * magnitude, 0x1.0p-23 * magnitude);
      }
    }
  }
  ASSERT_TRUE(SetTarget("auto").ok());
}

TEST(RotateHeads, TurnsEveryPairOfEveryHeadByItsAngle) {
  for (const std::string& target : AvailableTargets()) {
    ASSERT_TRUE(SetTarget(target).ok());
    for (const size_t half : {1U, 9U, 16U, 32U, 40U, 64U, 128U}) {
      const size_t n_heads = 3, n_tokens = 50;
      Mat<float> cos(n_tokens, half), sin(n_tokens, half), x(n_tokens, n_heads * 2 * half);
      const std::vector<float> inv_freq = InverseFrequencies(half, 1e4);
      std::vector<int32_t> positions(n_tokens);
      for (size_t i = 0; i < n_tokens; ++i) positions[i] = static_cast<int32_t>(31 * i);
      const RopeSegment all = {.begin = 0, .end = n_tokens, .inv_freq = inv_freq.data()};
      KernelContext context(1);
      RopeAngles(context, {&all, 1}, positions, cos.view(), sin.view());
      for (size_t i = 0; i < n_tokens * x.cols(); ++i) x.Row(0)[i] = static_cast<float>(RandomUnit(half, i) - 0.5);
      std::vector<float> before(x.Row(0), x.Row(0) + n_tokens * x.cols());
      RotateHeads(context, {.cos = cos.view(), .sin = sin.view(), .norm = {}}, x.view());
      std::vector<float> single(x.Row(0), x.Row(0) + n_tokens * x.cols());
      for (size_t row = 0; row < n_tokens; ++row) {
        for (size_t at = 0; at < x.cols(); ++at) {
          const size_t i = at % half;
          const bool low = at % (2 * half) < half;
          const double own = double{before[row * x.cols() + at]};
          const double other = double{before[row * x.cols() + (low ? at + half : at - half)]};
          const double c = double{cos.Row(row)[i]};
          const double s = double{sin.Row(row)[i]};
          const double size = std::abs(own * c) + std::abs(other * s);
          ASSERT_NEAR(double{x.Row(row)[at]}, own * c + (low ? -other : other) * s, 2 * 0x1.0p-24 * size + 1e-45)
              << target << " half " << half;
        }
      }
      std::memcpy(x.Row(0), before.data(), x.size_bytes());
      KernelContext three(3);
      RotateHeads(three, {.cos = cos.view(), .sin = sin.view(), .norm = {}}, x.view());
      EXPECT_EQ(std::memcmp(x.Row(0), single.data(), x.size_bytes()), 0) << target;
    }
  }
  ASSERT_TRUE(SetTarget("auto").ok());
}

// The rotation by nothing leaves the norm alone to be seen; then norm and rotation are one after the other.
TEST(RotateHeads, NormsEveryHeadByItselfBeforeItTurnsIt) {
  for (const std::string& target : AvailableTargets()) {
    ASSERT_TRUE(SetTarget(target).ok());
    for (const size_t half : {9U, 32U, 40U, 64U}) {
      const size_t n_tokens = 5, n_heads = 4, head_dim = 2 * half;
      Mat<float> ones(n_tokens, half), zeros(n_tokens, half), cos(n_tokens, half), sin(n_tokens, half);
      Mat<float> weights(2, head_dim), x(n_tokens, n_heads * head_dim), turned(n_tokens, n_heads * head_dim);
      for (size_t i = 0; i < n_tokens * half; ++i) {
        ones.Row(0)[i] = 1;
        cos.Row(0)[i] = static_cast<float>(std::cos(static_cast<double>(i)));
        sin.Row(0)[i] = static_cast<float>(std::sin(static_cast<double>(i)));
      }
      for (size_t i = 0; i < 2 * head_dim; ++i) weights.Row(0)[i] = static_cast<float>(RandomUnit(1, i) * 2 - 1);
      for (size_t i = 0; i < x.rows() * x.cols(); ++i) x.Row(0)[i] = static_cast<float>(RandomUnit(2, i) * 4 - 2);
      const std::vector<float> before(x.Row(0), x.Row(0) + x.rows() * x.cols());
      std::memcpy(turned.Row(0), x.Row(0), x.size_bytes());
      const NormSegment norm[] = {{.begin = 0, .end = 2, .weight = weights.Row(0)},
                                  {.begin = 2, .end = n_tokens, .weight = weights.Row(1)}};
      KernelContext context(2);
      RotateHeads(context, {.cos = ones.view(), .sin = zeros.view(), .norm = norm, .eps = 1e-6F}, x.view());
      for (size_t head = 0; head < n_tokens * n_heads; ++head) {
        const float* from = before.data() + head * head_dim;
        double squares = 0;
        for (size_t i = 0; i < head_dim; ++i) squares += double{from[i]} * double{from[i]};
        const double inverse = 1 / std::sqrt(squares / static_cast<double>(head_dim) + 1e-6);
        for (size_t i = 0; i < head_dim; ++i) {
          const double expected = double{from[i]} * inverse * double{weights.Row(head / n_heads < 2 ? 0 : 1)[i]};
          // As in norm_test.cc: half the error of the sum of squares, and five roundings after it.
          ASSERT_NEAR(double{x.Row(0)[head * head_dim + i]}, expected,
                      std::abs(expected) * 0x1.0p-24 * (static_cast<double>(head_dim) / 16 + 30))
              << target << " half " << half;
        }
      }
      RotateHeads(context, {.cos = cos.view(), .sin = sin.view(), .norm = {}}, x.view());
      RotateHeads(context, {.cos = cos.view(), .sin = sin.view(), .norm = norm, .eps = 1e-6F}, turned.view());
      EXPECT_EQ(std::memcmp(x.Row(0), turned.Row(0), x.size_bytes()), 0) << target << " half " << half;
    }
  }
  ASSERT_TRUE(SetTarget("auto").ok());
}

}  // namespace
}  // namespace df::kernels
