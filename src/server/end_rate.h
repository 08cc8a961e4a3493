// How long a client that is refused had better wait (Retry-After): by how fast requests have ended lately.
#ifndef DELTAFOLD_SERVER_END_RATE_H_
#define DELTAFOLD_SERVER_END_RATE_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>

namespace df::server {

inline constexpr int64_t kLongestRetryAfterS = 60;

// Times by one monotonic clock. Thread-compatible.
class EndRate {
 public:
  void Count(int64_t now_us) {
    n_ended_ = Decayed(now_us) + 1;
    counted_us_ = now_us;
  }
  // Seconds until half of the `n_open` requests will have ended: those who were refused together come back while there
  // is room. 1 to kLongestRetryAfterS.
  int64_t RetryAfterS(size_t n_open, int64_t now_us) const {
    const double per_s = Decayed(now_us) * std::numbers::ln2 / kHalfLifeS;
    const double seconds = static_cast<double>(n_open) / 2 / std::max(per_s, 1e-3);
    return std::clamp(static_cast<int64_t>(std::ceil(std::min(seconds, 1e6))), int64_t{1}, kLongestRetryAfterS);
  }

 private:
  static constexpr double kHalfLifeS = 20;  // a few answers of a busy server, and forgotten within minutes

  double Decayed(int64_t now_us) const {
    return n_ended_ * std::exp2(-static_cast<double>(now_us - counted_us_) * 1e-6 / kHalfLifeS);
  }

  double n_ended_ = 0;
  int64_t counted_us_ = 0;
};

}  // namespace df::server

#endif  // DELTAFOLD_SERVER_END_RATE_H_
