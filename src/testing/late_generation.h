// Weights that come, or fail, when a test says so.
#ifndef DELTAFOLD_TESTING_LATE_GENERATION_H_
#define DELTAFOLD_TESTING_LATE_GENERATION_H_

#include <atomic>
#include <utility>

#include "store/generation.h"

namespace df::testing {

// Thread-safe.
class LateGeneration final : public Generation {
 public:
  explicit LateGeneration(GenerationRef fixed) : fixed_(std::move(fixed)) {}
  const GenerationInfo& info() const override { return fixed_->info(); }
  LeaseAttempt TryLease(int64_t now_us) const override {
    ++n_asks;
    if (fails) return {.lease = {}, .failure = Corrupt("the digest does not match")};
    return has_come ? fixed_->TryLease(now_us) : LeaseAttempt{};
  }

  void EndAsk() const override { ++n_ended_asks; }

  std::atomic<bool> has_come = false, fails = false;
  mutable std::atomic<int> n_asks = 0, n_ended_asks = 0;

 private:
  const GenerationRef fixed_;
};

}  // namespace df::testing

#endif  // DELTAFOLD_TESTING_LATE_GENERATION_H_
