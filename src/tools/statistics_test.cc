#include "tools/statistics.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/rng.h"

namespace df::tools {
namespace {

TEST(Statistics, PercentilesAreThoseOfNumPy) {
  const std::vector<double> samples = {15, 20, 35, 40, 50};
  EXPECT_DOUBLE_EQ(Percentile(samples, 40), 29);  // numpy.percentile([15, 20, 35, 40, 50], 40)
  EXPECT_DOUBLE_EQ(Percentile(samples, 0), 15);
  EXPECT_DOUBLE_EQ(Percentile(samples, 100), 50);
  EXPECT_DOUBLE_EQ(Percentile(samples, 99), 49.6);
}

TEST(Statistics, TheOrderOfSamplesDoesNotMatter) {
  EXPECT_DOUBLE_EQ(Median(std::vector<double>{3, 1, 2}), 2);
  EXPECT_DOUBLE_EQ(Median(std::vector<double>{4, 1, 3, 2}), 2.5);
  EXPECT_DOUBLE_EQ(Median(std::vector<double>{7}), 7);
}

TEST(Statistics, MeanAndDeviation) {
  const std::vector<double> samples = {2, 4, 4, 4, 5, 5, 7, 9};
  EXPECT_DOUBLE_EQ(Mean(samples), 5);
  EXPECT_DOUBLE_EQ(StandardDeviation(samples), 2);
}

TEST(Statistics, BoundsOfEqualSamplesAreThatSample) {
  const Interval bounds = MedianBounds(std::vector<double>(30, 1.5));
  EXPECT_EQ(bounds.low, 1.5);
  EXPECT_EQ(bounds.high, 1.5);
}

TEST(Statistics, BoundsEncloseTheMedianAndOneOutlierDoesNotMoveThem) {
  std::vector<double> samples;
  samples.reserve(40);
  for (uint64_t i = 0; i < 40; ++i) samples.push_back(1 + 0.1 * RandomUnit(1, i));
  const Interval bounds = MedianBounds(samples);
  EXPECT_LE(bounds.low, Median(samples));
  EXPECT_GE(bounds.high, Median(samples));
  EXPECT_LT(bounds.high - bounds.low, 0.06);
  samples.back() = 1000;
  EXPECT_LT(MedianBounds(samples).high, 1.1);
}

// The median of samples from a known distribution lies above the lower bound in 95 of 100 experiments.
TEST(Statistics, TheLowerBoundHoldsAsOftenAsItSays) {
  constexpr int kExperiments = 200;
  int holds = 0;
  for (uint64_t experiment = 0; experiment < kExperiments; ++experiment) {
    std::vector<double> samples;
    samples.reserve(31);
    for (uint64_t i = 0; i < 31; ++i) samples.push_back(RandomUnit(100 + experiment, i));
    holds += MedianBounds(samples, experiment).low <= 0.5 ? 1 : 0;
  }
  // 190 expected, standard deviation 3.1; the bootstrap of a median is known to be a little optimistic.
  EXPECT_GE(holds, 178);
  EXPECT_LE(holds, 199);
}

}  // namespace
}  // namespace df::tools
