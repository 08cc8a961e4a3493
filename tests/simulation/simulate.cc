// Simulates worlds, one a seed, on all processors. See docs/simulation.md.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "world.h"

namespace df::simulation {
namespace {

constexpr uint64_t kMostShown = 10;
constexpr uint64_t kTwiceEvery = 16;  // seeds that are run twice and must do the same

struct Flags {
  uint64_t first = 0, n_seeds = 20'000;
  uint64_t n_threads = std::max(1U, std::thread::hardware_concurrency());
  bool prints = false, stops_at_failure = false;
};

[[noreturn]] void EndWithUsage() {
  std::fprintf(stderr,
               "usage: simulate [--seeds N] [--first SEED] [--threads N] [--until-failure]\n"
               "       simulate --seed SEED [--trace]\n");
  std::exit(2);
}

Flags Parse(int argc, char** argv) {
  Flags flags;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--trace") {
      flags.prints = true;
      continue;
    }
    if (flag == "--until-failure") {
      flags.stops_at_failure = true;
      continue;
    }
    char* end = nullptr;
    const uint64_t value = i + 1 < argc ? std::strtoull(argv[++i], &end, 10) : 0;
    if (end == nullptr || *end != '\0' || end == argv[i]) EndWithUsage();
    if (flag == "--seed")
      flags.first = value, flags.n_seeds = 1, flags.n_threads = 1;
    else if (flag == "--seeds")
      flags.n_seeds = value;
    else if (flag == "--first")
      flags.first = value;
    else if (flag == "--threads")
      flags.n_threads = std::max<uint64_t>(value, 1);
    else
      EndWithUsage();
  }
  return flags;
}

const char* program = "simulate";
thread_local uint64_t seed_under_way = 0;

// An internal check failed, or worse: the seed is known, the rest of the world is lost.
void OnCrash(int signal) {
  char text[256];
  const int n =
      std::snprintf(text, sizeof(text), "seed %llu: broke %s: the process ends\n  %s --seed %llu --trace\n",
                    static_cast<unsigned long long>(seed_under_way), signal == SIGABRT ? "DF_CHECK" : "memory", program,
                    static_cast<unsigned long long>(seed_under_way));
  static_cast<void>(!write(STDOUT_FILENO, text, static_cast<size_t>(n)));
  std::_Exit(1);
}

class Run {
 public:
  explicit Run(const Flags& flags) : flags_(flags), next_(flags.first) {}

  bool Simulate() {
    std::vector<std::thread> threads;
    for (uint64_t i = 0; i < flags_.n_threads; ++i) threads.emplace_back([this] { Work(); });
    for (std::thread& thread : threads) thread.join();
    return Print();
  }

 private:
  void Work() {
    const uint64_t end = flags_.first + flags_.n_seeds;
    for (uint64_t seed = next_++; seed < end && !(flags_.stops_at_failure && has_failed_); seed = next_++) {
      seed_under_way = seed;
      Outcome outcome = df::simulation::Simulate(seed, flags_.prints);
      if (outcome.invariant.empty() && seed % kTwiceEvery == 0 && !flags_.prints &&
          df::simulation::Simulate(seed, false).digest != outcome.digest) {
        outcome.invariant = "determinism";
        outcome.what = "the same seed did something else the second time";
      }
      Add(seed, outcome);
    }
  }

  void Add(uint64_t seed, const Outcome& outcome) {
    const std::scoped_lock lock(mutex_);
    ++n_done_;
    if (!outcome.invariant.empty()) {
      failures_[seed] = outcome;
      has_failed_ = true;
    }
    sum_.n_events += outcome.n_events;
    sum_.n_ended += outcome.n_ended;
    sum_.n_answered += outcome.n_answered;
    sum_.n_loads += outcome.n_loads;
    sum_.n_failures += outcome.n_failures;
    sum_.n_evictions += outcome.n_evictions;
    sum_.n_preemptions += outcome.n_preemptions;
    sum_.n_prefix_hits += outcome.n_prefix_hits;
    sum_.virtual_us += outcome.virtual_us;
    if (isatty(STDERR_FILENO) != 0 && n_done_ % 100 == 0) {
      std::fprintf(stderr, "\r%llu of %llu seeds, %zu failed", static_cast<unsigned long long>(n_done_),
                   static_cast<unsigned long long>(flags_.n_seeds), failures_.size());
    }
  }

  bool Print() const {
    if (isatty(STDERR_FILENO) != 0 && n_done_ >= 100) std::fprintf(stderr, "\r\033[K");
    uint64_t n_shown = 0;
    for (const auto& [seed, outcome] : failures_) {
      if (n_shown++ == kMostShown) break;
      std::printf("seed %llu: broke %s: %s\n  %s --seed %llu --trace\n", static_cast<unsigned long long>(seed),
                  outcome.invariant.c_str(), outcome.what.c_str(), program, static_cast<unsigned long long>(seed));
    }
    const auto count = [](uint64_t n) { return static_cast<unsigned long long>(n); };
    std::printf(
        "%llu events in %.0f s of virtual time; requests: %llu ended, %llu of them with a whole answer; loads: "
        "%llu done, %llu failed; %llu evictions, %llu preemptions, %llu tokens found in the prefix cache\n",
        count(sum_.n_events), static_cast<double>(sum_.virtual_us) * 1e-6, count(sum_.n_ended), count(sum_.n_answered),
        count(sum_.n_loads), count(sum_.n_failures), count(sum_.n_evictions), count(sum_.n_preemptions),
        count(sum_.n_prefix_hits));
    std::printf("%llu passed, %zu failed\n", count(n_done_ - failures_.size()), failures_.size());
    return failures_.empty();
  }

  const Flags flags_;
  std::atomic<uint64_t> next_;
  std::atomic<bool> has_failed_ = false;
  std::mutex mutex_;
  uint64_t n_done_ = 0;
  std::map<uint64_t, Outcome> failures_;
  Outcome sum_;
};

int Main(int argc, char** argv) {
  program = argv[0];
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE}) std::signal(signal, OnCrash);
  return Run(Parse(argc, argv)).Simulate() ? 0 : 1;
}

}  // namespace
}  // namespace df::simulation

int main(int argc, char** argv) { return df::simulation::Main(argc, argv); }
