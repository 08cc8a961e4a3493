// What the parts of a simulated world share: the virtual time with what is due, the log, the verdict.
#ifndef DELTAFOLD_TESTS_SIMULATION_ENVIRONMENT_H_
#define DELTAFOLD_TESTS_SIMULATION_ENVIRONMENT_H_

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "base/rng.h"
#include "plan.h"

namespace df::simulation {

class Timeline {
 public:
  int64_t now_us() const { return now_us_; }
  // Those of one moment run in the order in which they were asked for.
  void In(int64_t delay_us, std::function<void()> event) {
    due_.emplace(std::pair(now_us_ + delay_us, n_scheduled_++), std::move(event));
  }
  void RunNext() {
    auto next = due_.extract(due_.begin());
    now_us_ = std::max(now_us_, next.key().first);
    next.mapped()();
  }
  void Clear() { due_.clear(); }
  // The machine slept: everything that was due meanwhile comes late.
  void Jump(int64_t us) {
    now_us_ += us;
    slept_us_ += us;
  }
  // Time that nobody waited knowingly: to be taken from what is measured against a bound.
  int64_t slept_us() const { return slept_us_; }

 private:
  std::map<std::pair<int64_t, uint64_t>, std::function<void()>> due_;
  int64_t now_us_ = 1, slept_us_ = 0;
  uint64_t n_scheduled_ = 0;
};

// What happened: a digest, to compare runs, and lines on demand.
class Trace {
 public:
  Trace(const Timeline& timeline, bool prints) : timeline_(timeline), prints_(prints) {}

  void Note(std::string_view what, std::string_view whom, uint64_t number = 0) {
    Mix(static_cast<uint64_t>(timeline_.now_us()));
    for (const std::string_view text : {what, whom}) {
      for (const char c : text) Mix(static_cast<unsigned char>(c));
    }
    Mix(number);
    if (!prints_) return;
    std::printf("%12.3f ms  %-16.*s %.*s  %llu\n", static_cast<double>(timeline_.now_us()) * 1e-3,
                static_cast<int>(what.size()), what.data(), static_cast<int>(whom.size()), whom.data(),
                static_cast<unsigned long long>(number));
  }
  uint64_t digest() const { return digest_; }

 private:
  void Mix(uint64_t value) { digest_ = (digest_ ^ value) * 0x100000001B3u; }

  const Timeline& timeline_;
  const bool prints_;
  uint64_t digest_ = 0xCBF29CE484222325u;
};

// The first broken invariant.
class Verdict {
 public:
  bool ok() const { return invariant_.empty(); }
  const std::string& invariant() const { return invariant_; }
  const std::string& what() const { return what_; }
  void Break(std::string_view invariant, std::string what) {
    if (!ok()) return;
    invariant_ = invariant;
    what_ = std::move(what);
  }

 private:
  std::string invariant_, what_;
};

struct Environment {
  Environment(const Plan& p, bool prints) : plan(p), trace(timeline, prints) {}
  int64_t now_us() const { return timeline.now_us(); }
  int64_t awake_us() const { return timeline.now_us() - timeline.slept_us(); }

  const Plan plan;
  Timeline timeline;
  Trace trace;
  Verdict verdict;
};

}  // namespace df::simulation

#endif  // DELTAFOLD_TESTS_SIMULATION_ENVIRONMENT_H_
