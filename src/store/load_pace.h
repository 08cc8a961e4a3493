// How fast loads may go while others decode: a token bucket of bytes packed, shared by all loader threads.
#ifndef DELTAFOLD_STORE_LOAD_PACE_H_
#define DELTAFOLD_STORE_LOAD_PACE_H_

#include <algorithm>
#include <cstdint>

namespace df {

// Thread-compatible; time is passed in.
class LoadPace {
 public:
  // 0 = as fast as it goes.
  explicit LoadPace(uint64_t bytes_per_second) : bytes_per_second_(bytes_per_second) {}

  // Counts `bytes` as packed; microseconds until the next may be. Nothing is saved up over a pause: a load that comes
  // after a quiet hour is no faster than one that comes after another.
  int64_t Spend(uint64_t bytes, int64_t now_us) {
    if (bytes_per_second_ == 0) return 0;
    free_at_us_ = std::max(free_at_us_, now_us) +
                  static_cast<int64_t>(static_cast<double>(bytes) * 1e6 / static_cast<double>(bytes_per_second_));
    return free_at_us_ - now_us;
  }

 private:
  uint64_t bytes_per_second_;
  int64_t free_at_us_ = 0;
};

}  // namespace df

#endif  // DELTAFOLD_STORE_LOAD_PACE_H_
