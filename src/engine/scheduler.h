// Who runs in the next step. Sequences wait in a line per variant (fair_queue.h), enter the running set with a lease of
// their weights when their known tokens fit the KV pool, and leave it at their end or, when the pool is full, youngest
// first: a preempted one keeps its ticket and comes back before any new one.
//
// A step holds one row of every decoding sequence, then as many prefill (or replay) rows as the budget leaves, oldest
// ticket first: a long prompt delays others' next token by one chunk at most, and the oldest always advances.
//
// Whatever the traffic, a request in front of which n of its own variant wait enters the running set within
//
//   B(n) = 2 (n + 1) (1 + P) (W + (S C + rho V (k + 1) (q + 2 c)) t)
//
// t      the longest step
// S, C   max_num_seqs; most tokens of a sequence
// V      variants, the base included, that have waiting requests at one time
// c, q   largest cost of a request (CostTokens); max_num_batched_tokens
// k      ceil(2 c / q): rounds until a line in debt is served again
// rho    largest ratio of a request's tokens to its cost
// W      longest time until the store grants weights that are asked for at each of its news; 0 when they stay resident
// P      times that a preempted sequence comes back before it; 0 when the pool holds S sequences of C tokens
//
// Proof. (1) The oldest ticket that runs is never preempted and has a row in each step: its decode row, or prefill
// rows, since S <= q leaves the oldest prefill one. So those with tickets end one after the other, each within as many
// steps as it has tokens, whatever enters behind them. (2) While a request is first of its line and its line has a
// turn, at most k + 1 rounds begin before that turn, and in each the at most V lines enter requests that cost q + 2 c:
// a quantum, what was left of the last (< c), one on credit (<= c). As long as the turn has not come, one of these, or
// of the S with tickets before them, has not ended; by (1) all have after (S C + rho V (k + 1) (q + 2 c)) steps. Then
// the pool is empty, and the longest sequence fits. (3) If its weights are not there when its turn comes, they are
// granted within W, the claim keeps them, and the line has a turn again: (2) once more, hence the factor 2. (4) A
// preempted sequence goes first: it waits W for its weights, during which claims may be lost, and S C steps for the
// pool; then (2) and (3) once more, hence 1 + P. (5) n + 1 times, for those in front and itself; failed and cancelled
// ones only leave earlier. QED scheduler_load_test.cc computes B and holds random traffic to it.
#ifndef DELTAFOLD_ENGINE_SCHEDULER_H_
#define DELTAFOLD_ENGINE_SCHEDULER_H_

#include <memory>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/fair_queue.h"
#include "engine/sequence.h"

namespace df {

struct SchedulerOptions {
  size_t max_num_seqs = 64;  // <= max_num_batched_tokens
  size_t max_num_batched_tokens = 512;
  int64_t longest_weights_wait_us =
      0;  // then who waits for weights and has not run yet has failed; 0 = as long as it takes
};

// The next `n_rows` tokens of a sequence, all of phase `phase`.
struct Piece {
  Sequence* sequence = nullptr;
  size_t n_rows = 0;
  kernels::Phase phase = kernels::Phase::kDecode;

  // Whether the row's logits give a new token: the piece reaches the last known one.
  bool ReachesEnd() const { return n_rows == sequence->n_pending(); }
};

struct SchedulerStats {
  uint64_t n_preemptions = 0;
  uint64_t prefix_queries = 0, prefix_hits = 0;  // prompt tokens of those that shared and entered; of them, found
};

// Engine thread only; without threads or clock of its own.
class Scheduler {
 public:
  // The pool must hold the longest sequence (`token_limit`) that will ever be enqueued.
  Scheduler(SchedulerOptions options, KvBlocks& blocks)
      : options_(options), blocks_(blocks), waiting_(options.max_num_batched_tokens) {}

  // `arrival` ascending. Without memory for it nothing is changed.
  void Enqueue(std::unique_ptr<Sequence> sequence);
  // Weights that were asked for may be there, or have failed: the next plan asks again.
  void AskAgain() { asks_again_ = true; }

  // The pieces of the next step, neighbours where variant and phase are equal, the base first. Empty: all who are here
  // wait for weights. Valid until the next plan, and as long as the sequences are here.
  std::span<const Piece> PlanStep(int64_t now_us);
  // When, after an empty plan, there is something to do without any news; INT64_MAX: never.
  int64_t NextEventUs() const;

  // These take sequences out; whoever destroys them frees their blocks and weights.
  std::unique_ptr<Sequence> Remove(const Sequence& sequence);
  std::vector<std::unique_ptr<Sequence>> RemoveById(const std::string& id);
  std::vector<std::unique_ptr<Sequence>> RemoveExpired(int64_t now_us);
  std::vector<std::unique_ptr<Sequence>> RemoveAll();
  // Destroys all, in whatever state a call that found no memory has left this. Takes no memory.
  void Clear();
  // Those whose weights turned out, in the last plan, not to be had.
  std::vector<FailedSequence> TakeFailed();

  bool HasWork() const { return n_waiting() > 0 || n_running() > 0; }
  size_t n_waiting() const { return waiting_.size() + returning_.size() + (entering_ != nullptr ? 1 : 0); }
  size_t n_running() const { return running_.size(); }
  const SchedulerStats& stats() const { return stats_; }

 private:
  void PlanDecodes();
  void PlanChunks();
  void AddChunk(Sequence& sequence);
  bool CoverOrPreempt(size_t index);
  void PreemptYoungest();

  void Ask(int64_t now_us);
  bool AskForReturning(bool again, int64_t now_us);
  void Admit(int64_t now_us);
  std::unique_ptr<Sequence>* NextToEnterOrNull(int64_t now_us);
  bool TryEnter(std::unique_ptr<Sequence>& next, int64_t now_us);
  bool TryTakeBlocks(Sequence& sequence);

  std::unique_ptr<Sequence> TakeOut(const Sequence& sequence);
  void Forget(const Sequence& sequence);

  SchedulerOptions options_;
  KvBlocks& blocks_;
  FairQueue waiting_;                                 // without tickets
  std::unique_ptr<Sequence> entering_;                // next to get a ticket: has its weights, waits for blocks
  std::vector<std::unique_ptr<Sequence>> returning_;  // preempted; ascending ticket
  std::vector<std::unique_ptr<Sequence>> running_;    // ascending ticket
  std::vector<FailedSequence> failed_;
  std::vector<Piece> pieces_;
  PrefixMatch match_;
  size_t budget_tokens_ = 0;  // rows left in the step being planned
  uint64_t last_ticket_ = 0;
  bool asks_again_ = false;
  int64_t ask_again_us_ = 0;  // whatever the news
  SchedulerStats stats_;

  std::unordered_multimap<std::string, const Sequence*> by_id_;
  std::set<std::pair<int64_t, const Sequence*>> by_deadline_;  // those that have one
};

}  // namespace df

#endif  // DELTAFOLD_ENGINE_SCHEDULER_H_
