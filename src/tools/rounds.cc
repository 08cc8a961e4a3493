#include "tools/rounds.h"

#include "base/check.h"
#include "tools/cpu_timer.h"

namespace df::tools {

Rounds::Operation Rounds::Add(std::function<void()> run, std::function<void()> prepare) {
  entries_.push_back({.run = std::move(run), .prepare = std::move(prepare), .seconds = {}});
  return entries_.size() - 1;
}

void Rounds::Run(size_t n_rounds, const std::vector<bool>& used) {
  DF_CHECK(used.size() == entries_.size());
  n_rounds_ = n_rounds;
  for (Entry& entry : entries_) entry.seconds.clear();
  for (size_t round = 0; round <= n_rounds; ++round) {
    for (size_t i = 0; i < entries_.size(); ++i) {
      if (!used[i]) continue;
      Entry& entry = entries_[i];
      if (entry.prepare) entry.prepare();
      const CpuTimer timer(n_threads_);
      entry.run();
      const double seconds = timer.Seconds();
      if (round > 0) entry.seconds.push_back(seconds);  // the first one brings scratch and pages
    }
  }
}

}  // namespace df::tools
