#include "merge/element_ops.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <string>
#include <vector>

#include "codec/row_ops.h"
#include "kernels/target.h"
#include "merge/merge_fixture.h"
#include "merge/ref/element_ops.h"

namespace df::merge {
namespace {

template <typename Body>
void OnEveryTarget(const Body& body) {
  for (const std::string& target : kernels::AvailableTargets()) {
    SCOPED_TRACE(target);
    ASSERT_TRUE(kernels::SetTarget(target).ok());
    body();
  }
  ASSERT_TRUE(kernels::SetTarget("auto").ok());
}

std::vector<size_t> Lengths() {
  std::vector<size_t> lengths = {513, 4104};
  for (size_t n = 0; n <= 66; ++n) lengths.push_back(n);
  return lengths;
}

bool HaveSameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}
bool HasSameBits(double a, double b) { return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b); }

// Every seventh is 0, as after a trim.
std::vector<float> Values(size_t n, uint64_t seed) {
  std::vector<float> values = RandomValues(n, seed);
  for (size_t j = 3; j < n; j += 7) values[j] = 0;
  return values;
}

TEST(ElementOps, EveryTargetHasTheReferencesSumsAndPrunings) {
  OnEveryTarget([] {
    for (const size_t n : Lengths()) {
      const std::vector<float> values = Values(n, 1);
      EXPECT_TRUE(HasSameBits(element_ops::Squares(values), element_ops::ref::Squares(values))) << n;
      std::vector<float> got = values, expected = values;
      const uint32_t least = std::bit_cast<uint32_t>(0.4F);
      element_ops::KeepAtLeast(least, got);
      element_ops::ref::KeepAtLeast(least, expected);
      EXPECT_TRUE(HaveSameBits(got, expected)) << n;
      got = expected = values;
      element_ops::Drop(0x123456789ABCDEFu, 0xFFFFF000u, 0xC0000000u, got);
      element_ops::ref::Drop(0x123456789ABCDEFu, 0xFFFFF000u, 0xC0000000u, expected);
      EXPECT_TRUE(HaveSameBits(got, expected)) << n;
    }
  });
}

TEST(ElementOps, EveryTargetHasTheReferencesMerges) {
  OnEveryTarget([] {
    for (const size_t n : Lengths()) {
      const std::vector<float> a = Values(n, 1), b = Values(n, 2), c = Values(n, 3), base = Values(n, 4);
      const std::vector<const float*> runs = {a.data(), b.data(), c.data()};
      const std::vector<double> weights = {0.5, -0.3, 0.7}, divisors = {0.5, 0.3, 0.7};
      for (const float* from : {static_cast<const float*>(nullptr), base.data()}) {
        std::vector<float> got(n), expected(n);
        const double squares = element_ops::WeightedSum({runs, from}, weights, got);
        EXPECT_TRUE(HasSameBits(squares, element_ops::ref::WeightedSum({runs, from}, weights, expected))) << n;
        EXPECT_TRUE(HaveSameBits(got, expected)) << n;
        for (const std::vector<double>& by : {divisors, std::vector<double>()}) {
          const element_ops::Consensus consensus{weights, by, 0.9};
          const double agreeing = element_ops::AgreeingSum({runs, from}, consensus, got);
          EXPECT_TRUE(HasSameBits(agreeing, element_ops::ref::AgreeingSum({runs, from}, consensus, expected))) << n;
          EXPECT_TRUE(HaveSameBits(got, expected)) << n;
        }
      }
    }
  });
}

// The stored bytes of some values, one byte off any alignment.
std::vector<uint8_t> StoredOf(const std::vector<float>& values, DType dtype) {
  std::vector<uint8_t> bytes(1 + values.size() * DTypeBytes(dtype));
  EXPECT_TRUE(row_ops::Narrow(values, dtype, bytes.data() + 1));
  return bytes;
}

std::vector<float> ReadBack(const std::vector<uint8_t>& stored, DType dtype, size_t n) {
  std::vector<float> values(n);
  row_ops::ReadRow({dtype, Shape{1, n}, Bytes(stored).subspan(1)}, 0, values);
  return values;
}

// What reading, subtracting and summing one after another give, for 1 to 4 models of a type, with a base and without.
void ExpectTheSeparateSums(DType dtype, size_t n_models, bool has_base, size_t n) {
  const std::vector<double> weights = {0.5, -0.3, 0.7, 1.1};
  const std::vector<uint8_t> base = StoredOf(Values(n, 9), dtype);
  const std::vector<float> from = ReadBack(base, dtype, n);
  std::vector<std::vector<uint8_t>> models;
  std::vector<std::vector<float>> differences;
  std::vector<const uint8_t*> stored;
  std::vector<const float*> runs;
  for (size_t i = 0; i < n_models; ++i) {
    models.push_back(StoredOf(Values(n, 1 + i), dtype));
    differences.push_back(ReadBack(models[i], dtype, n));
    for (size_t j = 0; has_base && j < n; ++j) differences[i][j] -= from[j];
  }
  for (size_t i = 0; i < n_models; ++i) {
    stored.push_back(models[i].data() + 1);
    runs.push_back(differences[i].data());
  }
  const std::span<const double> coefficients = std::span(weights).first(n_models);
  std::vector<double> squares(n_models, 3.0);
  std::vector<float> got(n), expected(n);
  const double result =
      element_ops::StoredSum({dtype, stored, has_base ? base.data() + 1 : nullptr}, coefficients, squares, got);
  const double separate =
      element_ops::ref::WeightedSum({runs, has_base ? from.data() : nullptr}, coefficients, expected);
  EXPECT_TRUE(HasSameBits(result, separate)) << n;
  EXPECT_TRUE(HaveSameBits(got, expected)) << n;
  for (size_t i = 0; i < n_models; ++i) {
    EXPECT_TRUE(HasSameBits(squares[i], 3.0 + element_ops::ref::Squares(differences[i]))) << n;
  }
}

TEST(ElementOps, SumsOfStoredElementsHaveTheBitsOfTheSeparateSteps) {
  OnEveryTarget([] {
    for (const DType dtype : {DType::kBf16, DType::kF16, DType::kF32}) {
      for (size_t n_models = 1; n_models <= element_ops::kMaxStored; ++n_models) {
        for (const size_t n : Lengths()) {
          ExpectTheSeparateSums(dtype, n_models, false, n);
          ExpectTheSeparateSums(dtype, n_models, true, n);
        }
      }
    }
  });
}

TEST(ElementOps, RunsMayBeginInTheMiddle) {
  const std::vector<float> a = Values(100, 1), base = Values(100, 2);
  const float* const run = a.data();
  const double weight = 0.25;
  std::vector<float> whole(100), part(60);
  element_ops::WeightedSum({{&run, 1}, base.data()}, {&weight, 1}, whole);
  element_ops::WeightedSum({{&run, 1}, base.data(), 37}, {&weight, 1}, part);
  EXPECT_TRUE(HaveSameBits(part, {whole.begin() + 37, whole.begin() + 97}));
}

TEST(ElementOps, ASumOfSquaresIsFiniteExactlyWhenTheValuesAre) {
  OnEveryTarget([] {
    for (size_t at = 0; at < 40; ++at) {
      std::vector<float> values(40, 3e38F);
      EXPECT_TRUE(std::isfinite(element_ops::Squares(values)));
      values[at] = at % 2 == 0 ? NAN : -INFINITY;
      EXPECT_FALSE(std::isfinite(element_ops::Squares(values)));
    }
  });
}

// 2^20 draws a key: the share kept, its like beside another key and at the next place, within five deviations.
TEST(ElementOps, DrawsOfAKeyAreFairAndIndependentOfOtherKeys) {
  constexpr uint32_t kDraws = 1 << 20;
  for (const double share : {0.1, 0.5, 0.9}) {
    const auto below = static_cast<uint32_t>(share * 0x1p32);
    const uint64_t key = RandomBits(1, 2), other = RandomBits(1, 3);
    double kept = 0, both = 0, next = 0;
    for (uint32_t i = 0; i < kDraws; ++i) {
      const bool keeps = element_ops::Draw(key, i) < below;
      kept += keeps ? 1 : 0;
      both += keeps && element_ops::Draw(other, i) < below ? 1 : 0;
      next += keeps && element_ops::Draw(key, i + 1) < below ? 1 : 0;
    }
    const auto deviation = [&](double p) { return 5 * std::sqrt(p * (1 - p) / kDraws); };
    EXPECT_NEAR(kept / kDraws, share, deviation(share));
    EXPECT_NEAR(both / kDraws, share * share, deviation(share * share));
    EXPECT_NEAR(next / kDraws, share * share, deviation(share * share));
  }
}

}  // namespace
}  // namespace df::merge
