#include "kernels/activation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/rng.h"
#include "kernels/target.h"

namespace df::kernels {
namespace {

// silu of every value in `z`, alone as a row.
std::vector<float> Silu(const std::vector<float>& z) {
  KernelContext context(1);
  const std::vector<float> ones(z.size(), 1.0F);
  std::vector<float> out(z.size());
  SiluMul(context, {z.data(), 1, z.size()}, {ones.data(), 1, z.size()}, {out.data(), 1, out.size()});
  return out;
}

TEST(SiluMul, IsWithinFourUlpAboveMinus87AndTinyBelow) {
  std::vector<float> z;
  for (int i = 0; i < 200'001; ++i) z.push_back(static_cast<float>(i - 100'000) / 100'000 * 200);
  for (uint64_t i = 0; i < 50'000; ++i) z.push_back(static_cast<float>((RandomUnit(3, i) - 0.5) * 1e-3));
  for (const float x : {0.0F, -0.0F, 3.4e38F, -3.4e38F, 1e-45F, -88.72F, -88.73F, 87.0F, -87.0F}) z.push_back(x);
  for (const std::string& target : AvailableTargets()) {
    ASSERT_TRUE(SetTarget(target).ok());
    const std::vector<float> out = Silu(z);
    for (size_t i = 0; i < z.size(); ++i) {
      const double exact = double{z[i]} / (1 + std::exp(-double{z[i]}));
      // 4 ulp: at most 4 * 2^-23 of the value (and the last subnormal).
      const double tolerance = z[i] >= -87 ? 4 * 0x1.0p-23 * std::abs(exact) + 1.5e-45 : 0x1.0p-119;
      ASSERT_NEAR(double{out[i]}, exact, tolerance) << target << " z " << z[i];
    }
  }
  ASSERT_TRUE(SetTarget("auto").ok());
}

TEST(SiluMul, PassesNanOn) {
  for (const std::string& target : AvailableTargets()) {
    ASSERT_TRUE(SetTarget(target).ok());
    const std::vector<float> out = Silu(std::vector<float>(40, std::numeric_limits<float>::quiet_NaN()));
    for (const float x : out) EXPECT_TRUE(std::isnan(x)) << target;
  }
  ASSERT_TRUE(SetTarget("auto").ok());
}

TEST(SiluMul, MayWriteOverEitherInputAndDoesNotDependOnThreads) {
  const size_t n = 9, d = 1037;
  Mat<float> gate(n, d), up(n, d), expected(n, d);
  for (size_t i = 0; i < n * d; ++i) {
    gate.Row(0)[i] = static_cast<float>(RandomUnit(1, i) * 8 - 4);
    up.Row(0)[i] = static_cast<float>(RandomUnit(2, i) * 8 - 4);
  }
  for (const std::string& target : AvailableTargets()) {
    ASSERT_TRUE(SetTarget(target).ok());
    KernelContext one(1), three(3);
    SiluMul(one, gate.view(), up.view(), expected.view());
    for (const bool over_gate : {true, false}) {
      Mat<float> a(n, d), b(n, d);
      std::memcpy(a.Row(0), gate.Row(0), gate.size_bytes());
      std::memcpy(b.Row(0), up.Row(0), up.size_bytes());
      Mat<float>& out = over_gate ? a : b;
      SiluMul(three, a.view(), b.view(), out.view());
      EXPECT_EQ(std::memcmp(out.Row(0), expected.Row(0), out.size_bytes()), 0) << target;
    }
  }
  ASSERT_TRUE(SetTarget("auto").ok());
}

}  // namespace
}  // namespace df::kernels
