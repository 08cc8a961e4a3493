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

TEST(ApplyRope, TurnsEveryPairOfEveryHeadByItsAngle) {
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
      ApplyRope(context, cos.view(), sin.view(), x.view());
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
      ApplyRope(three, cos.view(), sin.view(), x.view());
      EXPECT_EQ(std::memcmp(x.Row(0), single.data(), x.size_bytes()), 0) << target;
    }
  }
  ASSERT_TRUE(SetTarget("auto").ok());
}

}  // namespace
}  // namespace df::kernels
