#include "tools/statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/check.h"
#include "base/rng.h"

namespace df::tools {
namespace {

constexpr size_t kResamples = 2000;  // the 5th percentile of them is the 100th smallest: its own noise is 10 % of 5 %

double PercentileOfSorted(std::span<const double> sorted, double percent) {
  const double rank = percent / 100 * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(rank);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above], rank - static_cast<double>(below));
}

}  // namespace

double Percentile(std::span<const double> samples, double percent) {
  DF_CHECK(!samples.empty() && percent >= 0 && percent <= 100);
  std::vector<double> sorted(samples.begin(), samples.end());
  std::sort(sorted.begin(), sorted.end());
  return PercentileOfSorted(sorted, percent);
}

double Mean(std::span<const double> samples) {
  DF_CHECK(!samples.empty());
  return std::accumulate(samples.begin(), samples.end(), 0.0) / static_cast<double>(samples.size());
}

double StandardDeviation(std::span<const double> samples) {
  const double mean = Mean(samples);
  double squares = 0;
  for (const double sample : samples) squares += (sample - mean) * (sample - mean);
  return std::sqrt(squares / static_cast<double>(samples.size()));
}

Interval MedianBounds(std::span<const double> samples, uint64_t seed) {
  DF_CHECK(!samples.empty());
  const size_t n = samples.size();
  std::vector<double> medians(kResamples), drawn(n);
  uint64_t draw = 0;
  for (double& median : medians) {
    for (double& value : drawn) value = samples[RandomBits(seed, draw++) % n];
    std::sort(drawn.begin(), drawn.end());
    median = PercentileOfSorted(drawn, 50);
  }
  std::sort(medians.begin(), medians.end());
  return {.low = PercentileOfSorted(medians, 5), .high = PercentileOfSorted(medians, 95)};
}

}  // namespace df::tools
