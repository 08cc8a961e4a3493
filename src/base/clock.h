// Time as the engine sees it: real in production, moved by hand in tests.
#ifndef DELTAFOLD_BASE_CLOCK_H_
#define DELTAFOLD_BASE_CLOCK_H_

#include <atomic>
#include <chrono>
#include <cstdint>

namespace df {

// Monotonic microseconds from an arbitrary origin. Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual int64_t NowUs() const = 0;
};

class SteadyClock final : public Clock {
 public:
  int64_t NowUs() const override {
    return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
};

class ManualClock final : public Clock {
 public:
  int64_t NowUs() const override { return now_us_.load(std::memory_order_relaxed); }
  void Advance(int64_t us) { now_us_.fetch_add(us, std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> now_us_{0};
};

}  // namespace df

#endif  // DELTAFOLD_BASE_CLOCK_H_
