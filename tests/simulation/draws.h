// Seeded draws, a stream for each purpose: what one part of a world draws does not move what another does.
#ifndef DELTAFOLD_TESTS_SIMULATION_DRAWS_H_
#define DELTAFOLD_TESTS_SIMULATION_DRAWS_H_

#include <cstdint>
#include <vector>

#include "base/rng.h"

namespace df::simulation {

enum class Stream : uint64_t { kPlan = 1, kTraffic, kOperator, kLoads, kThreads, kSteps };

class Draws {
 public:
  Draws(uint64_t seed, Stream stream) : seed_(RandomBits(seed, static_cast<uint64_t>(stream))) {}

  uint64_t Below(uint64_t n) { return RandomBits(seed_, n_drawn_++) % n; }
  // Both ends included.
  template <typename T>
  T Between(T least, T most) {
    return static_cast<T>(least + static_cast<T>(Below(static_cast<uint64_t>(most - least) + 1)));
  }
  bool PerMille(uint64_t chance) { return Below(1000) < chance; }
  // Index below `n`; the i-th with a chance in proportion to 1 / (i + 1).
  size_t Zipf(size_t n) {
    uint64_t sum = 0;
    for (size_t i = 0; i < n; ++i) sum += kZipfUnit / (i + 1);
    uint64_t left = Below(sum);
    for (size_t i = 0; i + 1 < n; ++i) {
      if (left < kZipfUnit / (i + 1)) return i;
      left -= kZipfUnit / (i + 1);
    }
    return n - 1;
  }
  template <typename T>
  const T& OneOf(const std::vector<T>& values) {
    return values[Below(values.size())];
  }

 private:
  static constexpr uint64_t kZipfUnit = 27720;  // whole shares up to twelve
  uint64_t seed_;
  uint64_t n_drawn_ = 0;
};

}  // namespace df::simulation

#endif  // DELTAFOLD_TESTS_SIMULATION_DRAWS_H_
