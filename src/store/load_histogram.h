// How long loads took, for metrics.
#ifndef DELTAFOLD_STORE_LOAD_HISTOGRAM_H_
#define DELTAFOLD_STORE_LOAD_HISTOGRAM_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace df {

// Upper ends in seconds: from an adapter in the page cache to a large delta on a slow disk.
inline constexpr std::array<double, 13> kLoadSeconds = {0.005, 0.01, 0.025, 0.05, 0.1,  0.25, 0.5,
                                                        1.0,   2.5,  5.0,   10.0, 30.0, 60.0};

struct LoadHistogram {
  std::array<uint64_t, kLoadSeconds.size() + 1> counts = {};  // the last: longer than all bounds
  double sum_s = 0;

  void Add(double seconds) {
    const auto* bound = std::lower_bound(kLoadSeconds.begin(), kLoadSeconds.end(), seconds);
    ++counts[static_cast<size_t>(bound - kLoadSeconds.begin())];
    sum_s += seconds;
  }
};

}  // namespace df

#endif  // DELTAFOLD_STORE_LOAD_HISTOGRAM_H_
