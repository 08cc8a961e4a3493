// What must hold at the moments when the engine has planned a step.
#include <algorithm>

#include "engine.h"

namespace df::simulation {
namespace {

constexpr int64_t kLongestWakeUs = 100;  // from the last step to the next turn, while there is no work

}  // namespace

// I8: deadlines are kept. I12: whoever has gone is out before the next step.
void Engine::CheckNews(const News& news) const {
  const std::set<std::string> cancelled(news.cancelled.begin(), news.cancelled.end());
  for (const auto& [arrival, live] : live_) {
    const Sequence& sequence = *live.sequence;
    if (sequence.deadline_us <= turn_us_) {
      environment_.verdict.Break("I8", "request " + sequence.request.id + " goes on after its deadline");
    }
    if (cancelled.contains(sequence.request.id)) {
      environment_.verdict.Break("I12", "request " + sequence.request.id + " goes on after it was cancelled");
    }
  }
  // I8: news of weights reach those who wait for them in the same turn. (One that was preempted asks first, and for
  // itself: then who asked is not known here.)
  if (!news.woken || scheduler_.stats().n_preemptions > 0) return;
  for (const auto& [arrival, live] : live_) {
    const Sequence& sequence = *live.sequence;
    if (sequence.ticket != 0 || sequence.request.variant == nullptr) continue;
    const Books& books = store_.BooksOf(*sequence.request.variant);
    const bool has_asked = books.asked_us >= 0 && sequence.submitted_us < books.last_asked_us;
    if (books.is_resident && has_asked && books.last_asked_us < turn_us_) {
      environment_.verdict.Break("I8", "the weights of " + books.digest + " are there, request " + sequence.request.id +
                                           " waits, and nobody asks for them");
    }
  }
}

size_t Engine::WaitingFor(const std::string& digest) const {
  const auto submitted = submitted_.find(digest);
  const auto n_accepted = std::count_if(unadmitted_.begin(), unadmitted_.end(),
                                        [&](uint64_t arrival) { return live_.at(arrival).digest == digest; });
  return static_cast<size_t>(n_accepted) + (submitted == submitted_.end() ? 0 : submitted->second);
}

// I8: nobody waits for weights for longer than he may. While nothing runs, all who are here wait for weights.
void Engine::CheckOverdue() {
  const int64_t longest_us = environment_.plan.scheduler.longest_weights_wait_us;
  if (longest_us == 0) return;
  for (auto& [arrival, live] : live_) {
    const Sequence& sequence = *live.sequence;
    if (sequence.ticket != 0 || sequence.request.variant == nullptr) continue;
    const int64_t asked_us = store_.BooksOf(*sequence.request.variant).asked_us;
    if (asked_us < 0 || asked_us > live.cold_us) live.cold_us = -1;
    if (!is_stepping_ && live.cold_us < 0 && asked_us >= 0) live.cold_us = turn_us_;
    if (live.cold_us >= 0 && turn_us_ - live.cold_us >= longest_us) {
      environment_.verdict.Break("I8", "request " + sequence.request.id + " waits for weights for longer than it may");
    }
  }
}

// I8: an engine without work wakes when the first of those who wait for weights has waited for too long.
void Engine::CheckWokenInTime() const {
  const int64_t longest_us = environment_.plan.scheduler.longest_weights_wait_us;
  if (longest_us == 0 || is_stepping_) return;
  const int64_t asleep_us = environment_.awake_us() - awake_us_;
  for (const auto& [arrival, live] : live_) {
    if (live.cold_us < 0 || asleep_us <= live.cold_us + longest_us - turn_us_ + kLongestWakeUs) continue;
    environment_.verdict.Break("I8", "request " + live.sequence->request.id + " is told late that it waited too long");
  }
}

// I7: weights are asked for as long as somebody here waits for them, and no longer: what is made room for is of use.
// (Those who waited too long are told that the weights are still wanted.)
void Engine::CheckAsks() {
  std::erase_if(left_wanted_, [this](CacheId id) {
    const auto books = store_.books().find(id);
    return books == store_.books().end() || books->second.asked_us < 0;
  });
  std::set<const Books*> waited_for;
  for (const auto& [arrival, live] : live_) {
    const Sequence& sequence = *live.sequence;
    const bool waits = sequence.request.variant != nullptr && (sequence.ticket == 0 || sequence.NeedsWeights());
    if (waits) waited_for.insert(&store_.BooksOf(*sequence.request.variant));
  }
  for (const auto& [id, books] : store_.books()) {
    if (books.asked_us < 0 || waited_for.contains(&books) || left_wanted_.contains(id)) continue;
    environment_.verdict.Break("I7", books.digest + " is asked for, and nobody waits for it");
  }
}

// What a step may hold (scheduler.h): its rows, its places, a block for each, neighbours of one variant and phase.
void Engine::CheckPlan(std::span<const Piece> pieces) const {
  const SchedulerOptions& options = environment_.plan.scheduler;
  Verdict& verdict = environment_.verdict;
  size_t n_rows = 0;
  std::set<std::pair<const VariantWeights*, kernels::Phase>> groups;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Piece& piece = pieces[i];
    const Sequence& sequence = *piece.sequence;
    n_rows += piece.n_rows;
    if (piece.n_rows == 0 || piece.n_rows > sequence.n_pending() || piece.phase != sequence.phase()) {
      verdict.Break("plan", "a piece that request " + sequence.request.id + " cannot run");
    }
    if (sequence.kv.n_blocks() < KvBlocksFor(sequence.n_cached + piece.n_rows)) {
      verdict.Break("I12", "request " + sequence.request.id + " runs without blocks");
    }
    if (sequence.NeedsWeights()) verdict.Break("I9", "request " + sequence.request.id + " runs without a lease");
    const std::pair group(sequence.lease.weights(), piece.phase);
    const bool goes_on = i > 0 && group == std::pair(pieces[i - 1].sequence->lease.weights(), pieces[i - 1].phase);
    if (!goes_on && !groups.insert(group).second) verdict.Break("plan", "a variant's rows are not together");
  }
  if (n_rows > options.max_num_batched_tokens) verdict.Break("plan", "more rows than a step may have");
  if (scheduler_.n_running() > options.max_num_seqs) verdict.Break("plan", "more run than may");
}

// I9: while one that was preempted waits for its weights, nobody who only waits keeps others' from going.
void Engine::CheckClaims() const {
  uint64_t n_held = 0;
  bool one_returns = false;
  for (const auto& [arrival, live] : live_) {
    n_held += live.sequence->lease.weights() == nullptr ? 0 : 1;
    one_returns |= live.sequence->ticket != 0 && live.sequence->NeedsWeights();
  }
  if (one_returns && store_.n_leases() != n_held) {
    environment_.verdict.Break("I9", "waiting requests hold weights while one that was preempted waits for its own");
  }
}

void Engine::CheckAdmissions() {
  std::set<std::string> lines;
  for (auto at = unadmitted_.begin(); at != unadmitted_.end();) {
    const auto found = live_.find(*at);
    if (found != live_.end() && found->second.sequence->ticket == 0) {
      lines.insert(found->second.digest);
      ++at;
      continue;
    }
    at = unadmitted_.erase(at);
    if (found == live_.end()) continue;
    const Sequence& sequence = *found->second.sequence;
    const int64_t waited_us = environment_.awake_us() - found->second.since_us;
    if (const int64_t bound_us = AgingBoundUs(found->second); waited_us > bound_us) {
      environment_.verdict.Break("I7", "request " + sequence.request.id + " waited " + std::to_string(waited_us) +
                                           " us for its turn, the aging bound is " + std::to_string(bound_us));
    }
  }
  most_lines_ = std::max(most_lines_, lines.size());
}

// B(n) of scheduler.h, with what this world has shown so far for t, c, V, W and P.
int64_t Engine::AgingBoundUs(const Live& live) const {
  const auto i = [](uint64_t count) { return static_cast<int64_t>(count); };
  const int64_t q = i(environment_.plan.scheduler.max_num_batched_tokens), c = i(largest_cost_);
  const int64_t k = (2 * c + q - 1) / q;
  const int64_t sequences = i(environment_.plan.scheduler.max_num_seqs * environment_.plan.context_tokens);
  const int64_t lines = i(std::max<size_t>(most_lines_, 1)) * (k + 1) * (q + 2 * c);
  const int64_t step_us = std::max(longest_step_us_, environment_.plan.longest_step_us) + kLongestWakeUs;
  const int64_t returns = i(scheduler_.stats().n_preemptions - live.n_preemptions);
  return 2 * i(live.n_before + 1) * (1 + returns) * (store_.longest_grant_us() + (sequences + lines) * step_us);
}

}  // namespace df::simulation
