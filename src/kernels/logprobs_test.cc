#include "kernels/logprobs.h"

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

// Peaked like a model's, with equal values among them.
std::vector<float> RandomLogits(size_t vocab, uint64_t seed) {
  std::vector<float> logits(vocab);
  for (size_t i = 0; i < vocab; ++i) {
    const double x = 12 * (RandomUnit(seed, 2 * i) + RandomUnit(seed, 2 * i + 1) - 1);
    logits[i] = static_cast<float>(std::round(x * 64) / 64);
  }
  return logits;
}

struct RowResult {
  LogNormalizer normalizer;
  std::vector<TokenLogprob> top;
};

RowResult Compute(KernelContext& context, const std::vector<float>& logits, size_t n_top) {
  RowResult result;
  result.top.resize(n_top);
  const LogprobRow row = {.row = 0, .vocab = logits.size(), .n_top = n_top, .top = result.top.data()};
  TopLogprobs(context, {logits.data(), 1, logits.size()}, {&row, 1}, {&result.normalizer, 1});
  return result;
}

double LogSumExp(const std::vector<float>& logits) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float x : logits) sum += std::exp(double{x} - top);
  return top + std::log(sum);
}

std::vector<int32_t> SortedTokens(const std::vector<float>& logits) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)];
    const float y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  });
  return order;
}

class Logprobs : public ::testing::Test {
 protected:
  ~Logprobs() override { EXPECT_TRUE(SetTarget("auto").ok()); }
};

// Two subtractions and the rounded logarithm, half an ulp each of at most |exact|; the mass is within 2^-20.
double Tolerance(double exact, double log_mass) { return 3 * 0x1.0p-24 * (std::abs(exact) + log_mass) + 0x1.0p-20; }

TEST_F(Logprobs, AgreeWithTheExactSumAndTheSortedVocabulary) {
  KernelContext context(2);
  for (const std::string& target : AvailableTargets()) {
    ASSERT_TRUE(SetTarget(target).ok());
    for (const size_t vocab : {1U, 7U, 64U, 65U, 1000U, 30'011U}) {
      const std::vector<float> logits = RandomLogits(vocab, vocab);
      const std::vector<int32_t> order = SortedTokens(logits);
      const double log_sum = LogSumExp(logits);
      const double log_mass = log_sum - double{logits[static_cast<size_t>(order[0])]};
      for (size_t n_top : {size_t{0}, size_t{1}, size_t{5}, size_t{20}, vocab}) {
        n_top = std::min(n_top, vocab);
        const RowResult result = Compute(context, logits, n_top);
        ASSERT_TRUE(result.normalizer.servable);
        for (size_t rank = 0; rank < n_top; ++rank) {
          ASSERT_EQ(result.top[rank].token, order[rank]) << target << " " << vocab << " rank " << rank;
          const double exact = double{logits[static_cast<size_t>(order[rank])]} - log_sum;
          ASSERT_NEAR(double{result.top[rank].logprob}, exact, Tolerance(exact, log_mass)) << target << " " << vocab;
        }
        const LogprobRow row = {.row = 0, .vocab = vocab};
        const int32_t last = order.back();
        const TokenLogprob one = LogprobOf({logits.data(), 1, vocab}, row, result.normalizer, last);
        const double exact = double{logits[static_cast<size_t>(last)]} - log_sum;
        EXPECT_EQ(one.token, last);
        EXPECT_NEAR(double{one.logprob}, exact, Tolerance(exact, log_mass));
        if (n_top == vocab) {
          EXPECT_EQ(one.logprob, result.top.back().logprob);  // the same token, the same bits
        }
      }
    }
  }
}

TEST_F(Logprobs, ListEqualLogitsByRisingIndex) {
  KernelContext context(1);
  for (const std::string& target : AvailableTargets()) {
    ASSERT_TRUE(SetTarget(target).ok());
    const RowResult result = Compute(context, std::vector<float>(5000, -3.0F), 20);
    for (int32_t rank = 0; rank < 20; ++rank) {
      EXPECT_EQ(result.top[static_cast<size_t>(rank)].token, rank) << target;
      EXPECT_NEAR(double{result.top[static_cast<size_t>(rank)].logprob}, -std::log(5000.0), 0x1.0p-20) << target;
    }
  }
}

TEST_F(Logprobs, KeepMaskedTokensAtMinusInfinityAndLast) {
  KernelContext context(1);
  for (const std::string& target : AvailableTargets()) {
    ASSERT_TRUE(SetTarget(target).ok());
    std::vector<float> logits(100, -kInfinity);
    logits[40] = 1.0F;
    logits[41] = 1.0F;
    const RowResult result = Compute(context, logits, 3);
    ASSERT_TRUE(result.normalizer.servable);
    EXPECT_EQ(result.top[0].token, 40) << target;
    EXPECT_NEAR(double{result.top[1].logprob}, -std::log(2.0), 0x1.0p-20) << target;
    EXPECT_EQ(result.top[2].token, 0) << target;
    EXPECT_EQ(result.top[2].logprob, -kInfinity) << target;
  }
}

TEST_F(Logprobs, SayWhenARowHoldsNoDistribution) {
  KernelContext context(1);
  for (const std::string& target : AvailableTargets()) {
    ASSERT_TRUE(SetTarget(target).ok());
    for (const float bad : {kNan, -kNan, kInfinity}) {
      std::vector<float> logits = RandomLogits(200, 1);
      logits[130] = bad;
      EXPECT_FALSE(Compute(context, logits, 2).normalizer.servable) << target << " " << bad;
    }
    EXPECT_FALSE(Compute(context, std::vector<float>(70, -kInfinity), 2).normalizer.servable) << target;
  }
}

TEST_F(Logprobs, DependOnTheRowAloneWhateverElseIsAskedAndHoweverManyThreads) {
  const size_t vocab = 5003;
  Mat<float> logits(6, vocab);
  for (size_t r = 0; r < 6; ++r) {
    const std::vector<float> row = RandomLogits(vocab, r);
    std::copy(row.begin(), row.end(), logits.Row(r));
  }
  for (const std::string& target : AvailableTargets()) {
    ASSERT_TRUE(SetTarget(target).ok());
    for (const size_t n_threads : {1U, 3U}) {
      KernelContext context(n_threads);
      std::vector<TokenLogprob> top(5 * 10);
      std::vector<LogprobRow> rows;
      for (size_t i = 0; i < 5; ++i) {
        // Row 4 counts fewer columns, as the base beside a variant with more tokens does.
        rows.push_back({.row = i + 1, .vocab = i == 3 ? 4000 : vocab, .n_top = 10, .top = top.data() + 10 * i});
      }
      std::vector<LogNormalizer> normalizers(5);
      TopLogprobs(context, logits.view(), rows, normalizers);
      for (size_t i = 0; i < 5; ++i) {
        const float* begin = logits.Row(i + 1);
        const RowResult alone = Compute(context, std::vector<float>(begin, begin + rows[i].vocab), 10);
        for (size_t rank = 0; rank < 10; ++rank) {
          EXPECT_EQ(rows[i].top[rank].token, alone.top[rank].token) << target << " row " << i;
          EXPECT_EQ(rows[i].top[rank].logprob, alone.top[rank].logprob) << target << " row " << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace df::kernels
