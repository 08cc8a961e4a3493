// What a list of measurements says: median, percentiles, and how sure the median is.
#ifndef DELTAFOLD_TOOLS_STATISTICS_H_
#define DELTAFOLD_TOOLS_STATISTICS_H_

#include <cstdint>
#include <span>

namespace df::tools {

// All: samples in any order, at least one; NaN is not allowed. Pure.

// Linear between the two nearest ranks (rank = percent / 100 * (n - 1)), as NumPy and therefore vLLM's benchmark do.
double Percentile(std::span<const double> samples, double percent);
inline double Median(std::span<const double> samples) { return Percentile(samples, 50); }
double Mean(std::span<const double> samples);
double StandardDeviation(std::span<const double> samples);  // of the population; 0 for one sample

struct Interval {
  double low = 0;
  double high = 0;
};

// One-sided 95 % bounds of the median on either side, by the percentile bootstrap (Efron, 1979): medians of 2000
// resamples with replacement, drawn from `seed`.
Interval MedianBounds(std::span<const double> samples, uint64_t seed = 1);

}  // namespace df::tools

#endif  // DELTAFOLD_TOOLS_STATISTICS_H_
