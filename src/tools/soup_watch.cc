// The loop around a soup: what came since it last looked, one checkpoint after the other.
#include <algorithm>
#include <chrono>
#include <thread>

#include "base/clock.h"
#include "tools/soup.h"

namespace df::tools {
namespace {

class Watch {
 public:
  Watch(Soup& soup, const WatchOptions& options) : soup_(soup), options_(options) {}

  Result<std::vector<WaitingCheckpoint>> Run() {
    int64_t last_us = clock_.NowUs();
    for (;;) {
      DF_ASSIGN_OR_RETURN(const FoundCheckpoints found, FindCheckpoints(options_.directory, options_.find));
      DF_ASSIGN_OR_RETURN(const std::optional<SoupSkip> vanished, soup_.SkipVanished(Listed(found)));
      if (vanished) DF_RETURN_IF_ERROR(Tell({.skip = *vanished}));
      DF_ASSIGN_OR_RETURN(const bool took_any, TakeNext(found.complete));
      if (took_any) {  // meanwhile others may have come, or gone
        last_us = clock_.NowUs();
        continue;
      }
      const bool is_settling = std::ranges::any_of(found.waiting, &WaitingCheckpoint::is_settling);
      if (options_.once && !is_settling) return found.waiting;
      const auto idle_s = static_cast<double>(clock_.NowUs() - last_us) * 1e-6;
      if (options_.idle_s > 0 && idle_s >= options_.idle_s) return found.waiting;
      DF_RETURN_IF_ERROR(
          Sleep(options_.once ? std::min(options_.find.settle_s / 4, options_.poll_s) : options_.poll_s));
    }
  }

 private:
  // Complete or not: those whose directories are there.
  static std::vector<FoundCheckpoint> Listed(const FoundCheckpoints& found) {
    std::vector<FoundCheckpoint> listed = found.complete;
    for (const WaitingCheckpoint& waiting : found.waiting) listed.push_back({.name = waiting.name});
    return listed;
  }

  bool IsPassedOver(const FoundCheckpoint& checkpoint) const {
    if (options_.every == 0 || soup_.steps().empty()) return false;
    return checkpoint.step < soup_.steps().back().checkpoint.step + options_.every;
  }

  // The first of them that is not known.
  Result<bool> TakeNext(const std::vector<FoundCheckpoint>& complete) {
    for (const FoundCheckpoint& checkpoint : complete) {
      if (soup_.IsKnown(checkpoint) || IsPassedOver(checkpoint)) continue;
      DF_ASSIGN_OR_RETURN(const TakenCheckpoint taken, soup_.Take(checkpoint));
      DF_RETURN_IF_ERROR(Tell(taken));
      return true;
    }
    return false;
  }

  Status Tell(const TakenCheckpoint& taken) const {
    return options_.on_taken ? options_.on_taken(taken) : Status::Ok();
  }

  // In pieces, so that an interrupt is heard.
  Status Sleep(double seconds) const {
    const int64_t end_us = clock_.NowUs() + static_cast<int64_t>(seconds * 1e6);
    do {
      DF_RETURN_IF_ERROR(soup_.Wait());
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    } while (clock_.NowUs() < end_us);
    return Status::Ok();
  }

  Soup& soup_;
  const WatchOptions& options_;
  SteadyClock clock_;
};

}  // namespace

Result<std::vector<WaitingCheckpoint>> WatchCheckpoints(Soup& soup, const WatchOptions& options) {
  return Watch(soup, options).Run();
}

Plot PlotOf(const std::vector<SoupStep>& steps, const std::string& score_name) {
  Plot plot{.title = "Soup during training", .x_label = "step", .y_label = score_name, .series = {}, .fits_y = true};
  Series newest{.name = "newest", .points = {}}, merged{.name = "merged", .points = {}},
      best{.name = "best", .points = {}};
  // A training that was run again comes by the same steps.
  std::vector<std::pair<uint64_t, size_t>> order;
  for (size_t i = 0; i < steps.size(); ++i) order.emplace_back(steps[i].checkpoint.step, i);
  std::ranges::sort(order);
  for (const auto& [number, i] : order) {
    const SoupStep& step = steps[i];
    const auto x = static_cast<double>(number);
    if (step.newest) newest.points.push_back({x, *step.newest});
    if (step.merged) merged.points.push_back({x, *step.merged});
    if (step.best) best.points.push_back({x, *step.best});
  }
  plot.series = {std::move(newest), std::move(merged), std::move(best)};
  return plot;
}

}  // namespace df::tools
