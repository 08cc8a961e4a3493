// For tests: a scheduler under a clock moved by hand, with a model that answers every drawn token with 7 at once, and a
// store of variants with room for few of them.
#ifndef DELTAFOLD_ENGINE_SCHEDULER_FIXTURE_H_
#define DELTAFOLD_ENGINE_SCHEDULER_FIXTURE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/clock.h"
#include "engine/scheduler.h"

namespace df {

struct FakeStoreOptions {
  size_t n_places = 2;
  int64_t patience_us = 20'000;  // that a wanted one has with others' leases, and a resident one at least
  int64_t backoff_us = 5'000;    // after a failed load
  int64_t interest_us = 30'000'000;
};
struct FakeLoad {
  int64_t load_us = 10'000;
  size_t n_failures = 0;  // loads that fail before one succeeds
};

// Keeps what the store promises the scheduler: who waits is served in order of waiting; what was loaded for somebody
// stays until it was leased once; what is in the way takes no new leases. One load at a time.
class FakeStore {
 public:
  explicit FakeStore(FakeStoreOptions options) : options_(options) {}

  GenerationRef Add(FakeLoad load) {
    auto weights = std::make_shared<VariantWeights>();
    weights->digest = std::to_string(entries_.size());
    entries_.push_back({.load = load, .weights = std::move(weights)});
    return std::make_shared<const Fake>(*this, entries_.size() - 1);
  }

  // Loads end, rooms are made, loads begin.
  void Tick(int64_t now_us) {
    for (Entry& entry : entries_) EndLoad(entry, now_us);
    Entry* wanted = nullptr;
    for (Entry& entry : entries_) {
      if (entry.state == State::kLoading) return;
      const bool is_wanted = entry.state == State::kOut && IsAsked(entry, now_us) && now_us >= entry.retry_us;
      if (is_wanted && (wanted == nullptr || entry.since_us < wanted->since_us)) wanted = &entry;
    }
    if (wanted == nullptr) {
      for (Entry& entry : entries_) entry.drains = false;
    } else if (MakeRoom(*wanted, now_us)) {
      for (Entry& entry : entries_) entry.drains = false;
      wanted->state = State::kLoading;
      wanted->done_us = now_us + wanted->load.load_us;
    }
  }

  bool TakeNews() { return std::exchange(has_news_, false); }
  size_t n_leases() const {
    size_t n = 0;
    for (const Entry& entry : entries_) n += entry.n_leases;
    return n;
  }
  size_t n_loads() const { return n_loads_; }
  size_t n_asks() const { return n_asks_; }

 private:
  enum class State { kOut, kLoading, kIn };
  struct Entry {
    FakeLoad load;
    std::shared_ptr<const VariantWeights> weights;
    State state = State::kOut;
    bool drains = false, awaited = false, is_asked = false;
    int64_t since_us = 0, asked_us = 0, in_since_us = 0, used_us = 0, done_us = 0, retry_us = 0;
    size_t n_leases = 0;
  };

  class Fake final : public Generation {
   public:
    Fake(FakeStore& store, size_t id) : store_(store), id_(id), info_{.digest = std::to_string(id), .config = {}} {}
    const GenerationInfo& info() const override { return info_; }
    LeaseAttempt TryLease(int64_t now_us) const override { return store_.TryLease(id_, now_us); }

   private:
    FakeStore& store_;
    size_t id_;
    GenerationInfo info_;
  };

  LeaseAttempt TryLease(size_t id, int64_t now_us) {
    ++n_asks_;
    Entry& entry = entries_[id];
    if (entry.state == State::kIn && !entry.drains) {
      ++entry.n_leases;
      entry.used_us = now_us;
      entry.awaited = entry.is_asked = false;
      const auto end = [this, id] {
        --entries_[id].n_leases;
        has_news_ = true;
      };
      return {.lease = {entry.weights, end}, .failure = {}};
    }
    if (entry.state == State::kOut && now_us < entry.retry_us)
      return {.lease = {}, .failure = Corrupt("a flipped bit")};
    if (!IsAsked(entry, now_us)) entry.since_us = now_us;
    entry.is_asked = true;
    entry.asked_us = now_us;
    return {};
  }

  bool IsAsked(const Entry& entry, int64_t now_us) const {
    return entry.is_asked && now_us - entry.asked_us < options_.interest_us;
  }

  void EndLoad(Entry& entry, int64_t now_us) {
    if (entry.state != State::kLoading || now_us < entry.done_us) return;
    has_news_ = true;
    ++n_loads_;
    if (entry.load.n_failures > 0) {
      --entry.load.n_failures;
      entry.state = State::kOut;
      entry.is_asked = false;
      entry.retry_us = now_us + options_.backoff_us;
      return;
    }
    entry.state = State::kIn;
    entry.in_since_us = entry.used_us = now_us;
    entry.awaited = IsAsked(entry, now_us);
  }

  bool MakeRoom(const Entry& wanted, int64_t now_us) {
    size_t n_in = 0;
    Entry* victim = nullptr;
    Entry* drained = nullptr;
    for (Entry& entry : entries_) {
      if (entry.state != State::kIn) continue;
      ++n_in;
      if (entry.awaited && IsAsked(entry, now_us)) continue;
      if (entry.n_leases == 0 && (victim == nullptr || entry.used_us < victim->used_us)) victim = &entry;
      if (now_us - entry.in_since_us < options_.patience_us) continue;
      if (drained == nullptr || (!drained->drains && (entry.drains || entry.in_since_us < drained->in_since_us))) {
        drained = &entry;
      }
    }
    if (n_in < options_.n_places) return true;
    if (victim != nullptr) {
      victim->state = State::kOut;
      victim->drains = false;
      return true;
    }
    if (drained != nullptr && now_us - wanted.since_us >= options_.patience_us) drained->drains = true;
    return false;
  }

  const FakeStoreOptions options_;
  std::vector<Entry> entries_;
  bool has_news_ = false;
  size_t n_loads_ = 0, n_asks_ = 0;
};

struct BenchRequest {
  size_t n_prompt = 1, n_answer = 1;
  GenerationRef variant = nullptr;
  size_t n_common = 0;  // leading prompt tokens that it shares with others
  int64_t timeout_ms = -1;
};

struct Bench {
  Bench(SchedulerOptions options, size_t n_blocks, FakeStoreOptions store_options = {})
      : store(store_options), blocks(n_blocks), scheduler(options, blocks) {}

  Sequence* Add(const BenchRequest& wanted) {
    GenerationRequest request;
    request.id = std::to_string(n_added);
    for (size_t i = 0; i < wanted.n_prompt; ++i) {
      request.prompt.push_back(static_cast<int32_t>(i < wanted.n_common ? i : 1000 + n_added));
    }
    request.variant = wanted.variant;
    request.params.max_tokens = wanted.n_answer;
    if (wanted.timeout_ms >= 0) request.timeout_ms = wanted.timeout_ms;
    const RequestLimits limits{.context_tokens = blocks.n_total() * kernels::kKvBlockTokens, .vocab = 8};
    auto sequence = MakeSequence(std::move(request), limits, clock.NowUs(), blocks);
    sequence->arrival = n_added++;
    const std::string digest = wanted.variant ? wanted.variant->info().digest : "";
    if (shares_prefixes) sequence->prefix_domain = MakePrefixDomain({"base", "bf16", digest, ""});
    Sequence* added = sequence.get();
    alive.emplace(added->request.id, added);
    scheduler.Enqueue(std::move(sequence));
    return added;
  }
  Sequence* Add(size_t n_prompt, size_t n_answer, GenerationRef variant = nullptr) {
    return Add({.n_prompt = n_prompt, .n_answer = n_answer, .variant = std::move(variant)});
  }

  // Rows of each sequence in the step, by id; finished, failed and expired ones leave.
  std::map<std::string, size_t> Step() {
    clock.Advance(step_us);
    store.Tick(clock.NowUs());
    if (store.TakeNews()) scheduler.AskAgain();
    for (const auto& expired : scheduler.RemoveExpired(clock.NowUs())) End(*expired, n_expired);
    std::map<std::string, size_t> rows;
    std::vector<Sequence*> drawn;
    const std::span<const Piece> pieces = scheduler.PlanStep(clock.NowUs());
    for (const FailedSequence& failed : scheduler.TakeFailed()) {
      EXPECT_EQ(failed.cause.code(), StatusCode::kUnavailable);
      End(*failed.sequence, n_failed);
    }
    for (const Piece& piece : pieces) {
      EXPECT_GT(piece.n_rows, 0u);
      EXPECT_EQ(piece.phase, piece.sequence->phase());
      EXPECT_GE(piece.sequence->kv.n_blocks(), KvBlocksFor(piece.sequence->n_cached + piece.n_rows));
      EXPECT_FALSE(piece.sequence->NeedsWeights());
      rows[piece.sequence->request.id] += piece.n_rows;
      if (piece.ReachesEnd()) drawn.push_back(piece.sequence);
      piece.sequence->Advance(piece.n_rows);
    }
    for (Sequence* sequence : drawn) {
      if (!AppendToken(*sequence, 7, clock.NowUs()).finish) continue;
      finished.push_back(sequence->request.id);
      End(*scheduler.Remove(*sequence), n_finished);
    }
    return rows;
  }

  void Cancel(const std::string& id) {
    for (const auto& cancelled : scheduler.RemoveById(id)) End(*cancelled, n_cancelled);
  }

  // Blocks and leases as the sequences say that they are.
  std::string Audit() const {
    std::vector<int32_t> held;
    size_t n_leases = 0;
    for (const auto& [id, sequence] : alive) {
      held.insert(held.end(), sequence->kv.block_table(), sequence->kv.block_table() + sequence->kv.n_blocks());
      n_leases += sequence->lease.weights() != nullptr ? 1 : 0;
    }
    if (n_leases > store.n_leases()) return "sequences hold more leases than the store knows of";
    return blocks.Audit(held);
  }

  ManualClock clock;
  int64_t step_us = 1000;
  bool shares_prefixes = true;
  FakeStore store;  // outlives leases
  KvBlocks blocks;
  std::map<std::string, Sequence*> alive;
  Scheduler scheduler;
  size_t n_added = 0;
  size_t n_finished = 0, n_failed = 0, n_expired = 0, n_cancelled = 0;
  std::vector<std::string> finished;
  std::function<void(const Sequence&)> on_end;

 private:
  void End(const Sequence& sequence, size_t& count) {
    ++count;
    if (on_end) on_end(sequence);
    EXPECT_EQ(alive.erase(sequence.request.id), 1u) << "an end of what has ended";
  }
};

}  // namespace df

#endif  // DELTAFOLD_ENGINE_SCHEDULER_FIXTURE_H_
