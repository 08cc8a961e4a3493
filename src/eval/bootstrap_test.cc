#include "eval/bootstrap.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"

namespace df::eval {
namespace {

// 1 with probability `share`.
std::vector<ItemSum> Coins(size_t n, double share, uint64_t seed) {
  std::vector<ItemSum> items(n);
  for (size_t i = 0; i < n; ++i) items[i] = {RandomUnit(seed, i) < share ? 1.0 : 0.0, 1};
  return items;
}

TEST(Bootstrap, MeansAreOverWeightsNotOverItems) {
  const std::vector<ItemSum> items = {{6, 3}, {1, 1}};
  EXPECT_EQ(MeanOf(items), 7.0 / 4);
  EXPECT_EQ(MeanOf(std::vector<ItemSum>{}), 0);
}

TEST(Bootstrap, FindsAPlantedDifferenceAndNoneWhereThereIsNone) {
  const auto good = Coins(200, 0.9, 1), bad = Coins(200, 0.6, 2);
  const Interval found = DifferenceInterval(good, bad, {});
  EXPECT_GT(found.low, 0);
  EXPECT_LT(found.low, MeanOf(good) - MeanOf(bad));
  EXPECT_GT(found.high, MeanOf(good) - MeanOf(bad));
  const Interval none = DifferenceInterval(good, good, {});
  EXPECT_EQ(none.low, 0);
  EXPECT_EQ(none.high, 0);
}

TEST(Bootstrap, IsAsWideAsTheNormalApproximationSays) {
  const size_t n = 400;
  const auto items = Coins(n, 0.5, 3);
  const double mean = MeanOf(items);
  const double half = 1.96 * std::sqrt(mean * (1 - mean) / static_cast<double>(n));
  const Interval interval = MeanInterval(items, {});
  // A percentile of 2000 resamples is good to some 5 % of the half width, and proportions are steps of 1 / n.
  const double tolerance = 0.1 * half + 1.0 / static_cast<double>(n);
  EXPECT_NEAR(interval.low, mean - half, tolerance);
  EXPECT_NEAR(interval.high, mean + half, tolerance);
}

TEST(Bootstrap, HoldsTheTruthNineteenTimesInTwenty) {
  size_t held = 0;
  constexpr size_t kTrials = 300;
  for (size_t trial = 0; trial < kTrials; ++trial) {
    const Interval interval = MeanInterval(Coins(60, 0.3, 1000 + trial), {.seed = trial, .n_resamples = 400});
    if (interval.low <= 0.3 && 0.3 <= interval.high) ++held;
  }
  // Binomial of 0.95: a standard deviation of 3.8 in 300; four of them, and what 60 coins lack in smoothness.
  EXPECT_GE(held, 265U);
  EXPECT_LT(held, kTrials);
}

TEST(Bootstrap, PairsTakeAwayWhatBothSidesShare) {
  // The same hard and easy items for both; one side is always 0.1 better.
  std::vector<ItemSum> a, b;
  for (size_t i = 0; i < 100; ++i) {
    const double hard = RandomUnit(5, i);
    b.push_back({hard, 1});
    a.push_back({hard + 0.1, 1});
  }
  const Interval paired = DifferenceInterval(a, b, {});
  EXPECT_NEAR(paired.low, 0.1, 1e-12);
  EXPECT_NEAR(paired.high, 0.1, 1e-12);
  const Interval alone = MeanInterval(a, {});
  EXPECT_GT(alone.high - alone.low, 0.05);
}

TEST(Bootstrap, DependsOnTheSeedAlone) {
  const auto items = Coins(50, 0.4, 6);
  const Interval first = MeanInterval(items, {.seed = 7}), again = MeanInterval(items, {.seed = 7});
  EXPECT_EQ(first.low, again.low);
  EXPECT_EQ(first.high, again.high);
  EXPECT_NE(MeanInterval(items, {.seed = 8}).low + MeanInterval(items, {.seed = 9}).low, 2 * first.low);
}

TEST(Bootstrap, FindsAPlantedRatioOverVariants) {
  std::vector<PairedItems> variants(2);
  for (size_t v = 0; v < 2; ++v) {
    for (size_t i = 0; i < 40; ++i) {
      const double divergence = (v == 0 ? 0.5 : 0.001) * (0.5 + RandomUnit(v, i));
      variants[v].b.push_back({3 * divergence, 3});
      variants[v].a.push_back({3 * divergence * (v == 0 ? 0.1 : 0.4), 3});
    }
  }
  EXPECT_NEAR(GeometricRatio(variants, 1e-9), 0.2, 1e-12);  // sqrt(0.1 * 0.4)
  const Interval interval = GeometricRatioInterval(variants, 1e-9, {});
  EXPECT_NEAR(interval.low, 0.2, 1e-9);
  EXPECT_NEAR(interval.high, 0.2, 1e-9);
  // Nothing can be better than the floor.
  for (ItemSum& item : variants[0].a) item.sum = 0;
  EXPECT_NEAR(GeometricRatio({variants.data(), 1}, 1e-6), 1e-6 / MeanOf(variants[0].b), 1e-12);
}

}  // namespace
}  // namespace df::eval
