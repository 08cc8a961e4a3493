#include "kernels/sample.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "base/rng.h"
#include "kernels/target.h"

namespace df::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

int32_t SampleOne(const std::vector<float>& logits, SampleRow row) {
  static KernelContext context(1);
  row.vocab = logits.size();
  Sampled result;
  Sample(context, {logits.data(), 1, logits.size()}, {&row, 1}, {&result, 1});
  return result.token;
}

// Peaked like a model's: most of the mass on few tokens.
std::vector<float> RandomLogits(size_t vocab, uint64_t seed, double spread = 6) {
  std::vector<float> logits(vocab);
  for (size_t i = 0; i < vocab; ++i) {
    double sum = 0;
    for (uint64_t k = 0; k < 4; ++k) sum += RandomUnit(seed, 4 * i + k) - 0.5;
    logits[i] = static_cast<float>(spread * sum);
  }
  return logits;
}

// The distribution that the contract states, by sorting everything.
std::vector<double> ExactProbabilities(const std::vector<float>& logits, const SampleRow& row) {
  std::vector<size_t> order(logits.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; });
  size_t kept = order.size();
  if (row.top_k > 0 && static_cast<size_t>(row.top_k) < kept) {
    kept = static_cast<size_t>(row.top_k);
    while (kept < order.size() && logits[order[kept]] == logits[order[kept - 1]]) ++kept;
  }
  std::vector<double> p(logits.size(), 0.0);
  double total = 0;
  for (size_t i = 0; i < kept; ++i) {
    p[order[i]] = std::exp((double{logits[order[i]]} - double{logits[order[0]]}) / double{row.temperature});
    total += p[order[i]];
  }
  double sum = 0, mass = 0;
  size_t n = 0;
  for (; n < kept && (n == 0 || sum < double{row.top_p} * total); ++n) sum += p[order[n]];
  for (size_t i = n; i < kept; ++i) p[order[i]] = 0;
  for (const double x : p) mass += x;
  for (double& x : p) x /= mass;
  return p;
}

TEST(Sample, GreedyTakesTheLowestIndexAmongEquals) {
  for (const std::string& target : AvailableTargets()) {
    ASSERT_TRUE(SetTarget(target).ok());
    for (const size_t vocab : {1U, 2U, 63U, 64U, 65U, 1000U}) {
      std::vector<float> logits = RandomLogits(vocab, vocab);
      const auto best = static_cast<size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
      EXPECT_EQ(SampleOne(logits, {}), static_cast<int32_t>(best)) << target << " " << vocab;
      EXPECT_EQ(SampleOne(logits, {.temperature = 1e-6F, .seed = 5}), static_cast<int32_t>(best));
      logits.back() = logits[best];
      EXPECT_EQ(SampleOne(logits, {}), static_cast<int32_t>(best)) << target << " " << vocab;
      EXPECT_EQ(SampleOne(std::vector<float>(vocab, -2.5F), {}), 0) << target << " " << vocab;
    }
  }
  ASSERT_TRUE(SetTarget("auto").ok());
}

TEST(Sample, RefusesNanInfinityAndAllMinusInfinity) {
  const SampleRow kinds[] = {
      {}, {.temperature = 1.0F}, {.temperature = 1.0F, .top_k = 2}, {.temperature = 1.0F, .top_p = 0.5F}};
  for (const std::string& target : AvailableTargets()) {
    ASSERT_TRUE(SetTarget(target).ok());
    for (const SampleRow& kind : kinds) {
      for (const size_t vocab : {1U, 5U, 64U, 200U}) {
        for (const size_t at : {size_t{0}, vocab / 2, vocab - 1}) {
          for (const float bad : {kNan, -kNan, kInfinity}) {
            std::vector<float> logits = RandomLogits(vocab, 1);
            logits[at] = bad;
            EXPECT_EQ(SampleOne(logits, kind), -1) << target << " " << bad << " at " << at << " of " << vocab;
          }
        }
        EXPECT_EQ(SampleOne(std::vector<float>(vocab, -kInfinity), kind), -1) << target;
        std::vector<float> one_finite(vocab, -kInfinity);
        one_finite[vocab / 2] = -1e30F;
        EXPECT_EQ(SampleOne(one_finite, kind), static_cast<int32_t>(vocab / 2)) << target;
      }
    }
  }
  ASSERT_TRUE(SetTarget("auto").ok());
}

TEST(Forbid, MasksTheseTokensOfThisRowAlone) {
  Mat<float> logits(2, 300);
  const std::vector<float> before = RandomLogits(300, 9);
  for (size_t r = 0; r < 2; ++r) std::copy(before.begin(), before.end(), logits.Row(r));
  const std::vector<int32_t> tokens = {0, 7, 299};
  Forbid(logits.view(), 1, tokens);
  EXPECT_TRUE(std::equal(before.begin(), before.end(), logits.Row(0)));
  for (size_t i = 0; i < before.size(); ++i) {
    const bool forbidden = std::count(tokens.begin(), tokens.end(), static_cast<int32_t>(i)) > 0;
    EXPECT_EQ(logits.Row(1)[i], forbidden ? -kInfinity : before[i]) << i;
  }
}

TEST(Sample, NeverDrawsAMaskedToken) {
  std::vector<float> logits(300, -kInfinity);
  for (size_t i = 0; i < 300; i += 7) logits[i] = 0.0F;
  const SampleRow kinds[] = {{.temperature = 1.0F},
                             {.temperature = 3.0F, .top_k = 100},
                             {.temperature = 1.0F, .top_p = 0.99F},
                             {.temperature = 1e30F, .top_p = 0.5F}};
  for (const std::string& target : AvailableTargets()) {
    ASSERT_TRUE(SetTarget(target).ok());
    for (SampleRow row : kinds) {
      for (row.draw = 0; row.draw < 200; ++row.draw) EXPECT_EQ(SampleOne(logits, row) % 7, 0) << target;
    }
  }
  ASSERT_TRUE(SetTarget("auto").ok());
}

// The token of every draw is the one whose stretch of the exact cumulative distribution (by rising index) holds
// RandomUnit(seed, draw), or its neighbour where the border lies within 1e-5, far above f32 rounding.
void ExpectDrawsFollow(const std::vector<float>& logits, SampleRow row, size_t n_draws, const std::string& what) {
  const std::vector<double> p = ExactProbabilities(logits, row);
  for (row.draw = 0; row.draw < n_draws; ++row.draw) {
    const int32_t token = SampleOne(logits, row);
    ASSERT_GE(token, 0) << what;
    const auto drawn = static_cast<size_t>(token);
    const double unit = RandomUnit(row.seed, row.draw);
    double below = 0;
    for (size_t i = 0; i < drawn; ++i) below += p[i];
    ASSERT_GE(unit, below - 1e-5) << what << " draw " << row.draw;
    ASSERT_LE(unit, below + p[drawn] + 1e-5) << what << " draw " << row.draw;
    ASSERT_GT(p[drawn], 0.0) << what << " drew a token outside the kept set";
  }
}

TEST(Sample, DrawsFromTheDistributionTheContractStates) {
  const SampleRow kinds[] = {
      {.temperature = 1.0F},
      {.temperature = 0.3F},
      {.temperature = 5.0F},
      {.temperature = 1.0F, .top_k = 1},
      {.temperature = 1.0F, .top_k = 5},
      {.temperature = 2.0F, .top_k = 300},
      {.temperature = 1.0F, .top_k = 1 << 30},
      {.temperature = 1.0F, .top_p = 0.9F},
      {.temperature = 4.0F, .top_p = 0.99F},
      {.temperature = 1.0F, .top_p = 1e-6F},
      {.temperature = 1.0F, .top_p = 0.99999F},
      {.temperature = 0.7F, .top_k = 40, .top_p = 0.8F},
      {.temperature = 100.0F, .top_k = 999, .top_p = 0.5F},
  };
  for (const std::string& target : AvailableTargets()) {
    ASSERT_TRUE(SetTarget(target).ok());
    for (const size_t vocab : {1U, 2U, 64U, 1000U}) {
      const std::vector<float> logits = RandomLogits(vocab, vocab + 1);
      for (SampleRow row : kinds) {
        row.seed = 77;
        ExpectDrawsFollow(logits, row, 25,
                          target + " vocab " + std::to_string(vocab) + " t " + std::to_string(row.temperature) + " k " +
                              std::to_string(row.top_k) + " p " + std::to_string(row.top_p));
        if (HasFatalFailure()) return;
      }
    }
  }
  ASSERT_TRUE(SetTarget("auto").ok());
}

// Draw by draw against the oracle, which sorts: the seeds are fixed, and a border within f32 rounding of a draw (one in
// millions) would have been seen when they were chosen.
TEST(Sample, DrawsTheVeryTokensOfTheOracle) {
  const size_t vocab = 5003;
  std::vector<std::vector<float>> rows = {
      RandomLogits(vocab, 1, 8),         // peaked
      RandomLogits(vocab, 2, 0.01),      // flat
      std::vector<float>(vocab, -3.0F),  // all equal
      RandomLogits(vocab, 3, 1e-6),      // ties and neighbours in f32
      RandomLogits(vocab, 4, 1e30),      // one token has all the mass
  };
  rows.push_back(RandomLogits(vocab, 5, 4));  // quantised: every value many times, some masked
  for (float& x : rows.back()) x = x > 2 ? -kInfinity : std::round(x);
  const SampleRow kinds[] = {{.temperature = 1.0F},
                             {.temperature = 1.0F, .top_p = 0.95F},
                             {.temperature = 0.1F, .top_p = 0.5F},
                             {.temperature = 20.0F, .top_p = 0.9999F},
                             {.temperature = 1e-4F, .top_p = 0.01F},
                             {.temperature = 1.0F, .top_k = 50, .top_p = 0.9F}};
  std::vector<int32_t> expected;
  for (const bool oracle : {true, false}) {
    for (const std::string& target : AvailableTargets()) {
      if ((target == "scalar") != oracle) continue;
      ASSERT_TRUE(SetTarget(target).ok());
      size_t at = 0;
      for (const std::vector<float>& logits : rows) {
        for (SampleRow kind : kinds) {
          for (kind.draw = 0; kind.draw < 12; ++kind.draw, ++at) {
            kind.seed = 99;
            const int32_t token = SampleOne(logits, kind);
            if (oracle) {
              expected.push_back(token);
            } else {
              ASSERT_EQ(token, expected[at]) << target << " case " << at;
            }
          }
        }
      }
    }
  }
  ASSERT_TRUE(SetTarget("auto").ok());
}

TEST(Sample, TopOneIsGreedyExceptAmongEquals) {
  for (const std::string& target : AvailableTargets()) {
    ASSERT_TRUE(SetTarget(target).ok());
    const std::vector<float> logits = RandomLogits(5000, 3);
    for (uint64_t draw = 0; draw < 10; ++draw) {
      EXPECT_EQ(SampleOne(logits, {.temperature = 9.0F, .top_k = 1, .draw = draw}), SampleOne(logits, {}));
      EXPECT_EQ(SampleOne(logits, {.temperature = 9.0F, .top_p = 1e-7F, .draw = draw}), SampleOne(logits, {}));
    }
    // Ties at the k-th all stay: every one of the equals turns up.
    const std::vector<float> equal(10, 1.0F);
    std::vector<int> seen(10);
    for (uint64_t draw = 0; draw < 300; ++draw) {
      ++seen[static_cast<size_t>(SampleOne(equal, {.temperature = 1.0F, .top_k = 1, .draw = draw}))];
    }
    for (const int n : seen) EXPECT_GT(n, 0) << target;
    // top_p among equals: the lower indices, as many as reach it.
    for (uint64_t draw = 0; draw < 100; ++draw) {
      EXPECT_LT(SampleOne(equal, {.temperature = 1.0F, .top_p = 0.25F, .draw = draw}), 3) << target;
    }
  }
  ASSERT_TRUE(SetTarget("auto").ok());
}

// Pearson's statistic against the exact probabilities, tokens expected fewer than 10 times pooled. The seed is fixed,
// so this cannot flicker; the limit is the mean plus 5 standard deviations of the chi-square distribution.
void ExpectChiSquare(const std::vector<float>& logits, SampleRow row, const std::string& what) {
  const std::vector<double> p = ExactProbabilities(logits, row);
  const size_t n_draws = 20'000;
  std::vector<size_t> counts(logits.size());
  for (row.draw = 0; row.draw < n_draws; ++row.draw) ++counts[static_cast<size_t>(SampleOne(logits, row))];
  double statistic = 0, pooled_expected = 0, pooled_count = 0;
  size_t cells = 0;
  const auto add = [&](double count, double expected) {
    statistic += (count - expected) * (count - expected) / expected;
    ++cells;
  };
  for (size_t i = 0; i < p.size(); ++i) {
    const double expected = p[i] * static_cast<double>(n_draws);
    if (expected < 10) {
      pooled_expected += expected;
      pooled_count += static_cast<double>(counts[i]);
    } else {
      add(static_cast<double>(counts[i]), expected);
    }
  }
  if (pooled_expected > 10) add(pooled_count, pooled_expected);
  const auto freedom = static_cast<double>(cells - 1);
  EXPECT_LT(statistic, freedom + 5 * std::sqrt(2 * freedom) + 1) << what;
}

TEST(Sample, FrequenciesPassAChiSquareTest) {
  const std::vector<float> logits = RandomLogits(150, 21, 3);
  for (const std::string& target : AvailableTargets()) {
    if (target == "scalar") continue;  // sorts for every draw; covered by the exact draws above
    ASSERT_TRUE(SetTarget(target).ok());
    ExpectChiSquare(logits, {.temperature = 1.0F, .seed = 1}, target + " plain");
    ExpectChiSquare(logits, {.temperature = 1.0F, .top_k = 20, .seed = 2}, target + " top_k");
    ExpectChiSquare(logits, {.temperature = 1.5F, .top_p = 0.8F, .seed = 3}, target + " top_p");
  }
  ASSERT_TRUE(SetTarget("auto").ok());
}

TEST(Sample, HandlesALargeVocabularyRowsOfDifferentSizesAndAnyThreadCount) {
  const size_t vocab = 151'936, n_rows = 6;
  Mat<float> logits(n_rows, vocab);
  for (size_t r = 0; r < n_rows; ++r) {
    const std::vector<float> row = RandomLogits(vocab, r, r == 5 ? 0.01 : 8);
    std::copy(row.begin(), row.end(), logits.Row(r));
  }
  const SampleRow rows[] = {
      {.row = 0, .vocab = vocab},
      {.row = 1, .vocab = vocab, .temperature = 0.8F, .seed = 1},
      {.row = 2, .vocab = vocab - 100, .temperature = 0.8F, .top_k = 50, .seed = 2},
      {.row = 3, .vocab = vocab, .temperature = 1.0F, .top_p = 0.95F, .seed = 3},
      {.row = 4, .vocab = 1000, .temperature = 1.0F, .top_k = 20, .top_p = 0.9F, .seed = 4},
      {.row = 5, .vocab = vocab, .temperature = 50.0F, .top_p = 0.99F, .seed = 5},
      {.row = 5, .vocab = vocab, .temperature = 1.0F, .top_k = 100'000, .seed = 6},
  };
  for (const std::string& target : AvailableTargets()) {
    ASSERT_TRUE(SetTarget(target).ok());
    std::vector<Sampled> first(std::size(rows));
    for (const size_t threads : {1U, 2U, 3U}) {
      KernelContext context(threads);
      std::vector<Sampled> results(std::size(rows));
      Sample(context, logits.view(), rows, results);
      for (size_t i = 0; i < results.size(); ++i) {
        EXPECT_GE(results[i].token, 0) << target << " row " << i;
        EXPECT_LT(static_cast<size_t>(results[i].token), rows[i].vocab) << target << " row " << i;
        if (threads > 1) {
          EXPECT_EQ(results[i].token, first[i].token) << target << " row " << i;
        }
      }
      if (threads == 1) first = results;
      if (target == "scalar") break;
    }
  }
  ASSERT_TRUE(SetTarget("auto").ok());
}

TEST(LogSoftmax, AgreesWithTheExactSum) {
  for (const std::string& target : AvailableTargets()) {
    ASSERT_TRUE(SetTarget(target).ok());
    for (const size_t vocab : {1U, 7U, 64U, 1000U, 30'011U}) {
      Mat<float> logits(3, vocab), out(3, vocab);
      for (size_t r = 0; r < 3; ++r) {
        const std::vector<float> row = RandomLogits(vocab, r, 10);
        std::copy(row.begin(), row.end(), logits.Row(r));
      }
      logits.Row(1)[vocab / 2] = 100.0F;
      if (vocab > 1) logits.Row(2)[vocab - 1] = -kInfinity;
      KernelContext context(2);
      LogSoftmax(context, logits.view(), out.view());
      for (size_t r = 0; r < 3; ++r) {
        const double top = *std::max_element(logits.Row(r), logits.Row(r) + vocab);
        double sum = 0;
        for (size_t i = 0; i < vocab; ++i) sum += std::exp(double{logits.Row(r)[i]} - top);
        for (size_t i = 0; i < vocab; ++i) {
          const double exact = double{logits.Row(r)[i]} - top - std::log(sum);
          if (logits.Row(r)[i] == -kInfinity) {
            ASSERT_EQ(out.Row(r)[i], -kInfinity);
            continue;
          }
          // Two subtractions and the rounded logarithm, half an ulp each of at most |exact|; the mass is within 2^-20.
          ASSERT_NEAR(double{out.Row(r)[i]}, exact, 3 * 0x1.0p-24 * (std::abs(exact) + std::log(sum)) + 0x1.0p-20)
              << target << " vocab " << vocab;
        }
      }
    }
  }
  ASSERT_TRUE(SetTarget("auto").ok());
}

}  // namespace
}  // namespace df::kernels
