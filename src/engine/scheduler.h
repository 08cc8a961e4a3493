// Who runs in the next step. Sequences wait in order of arrival, enter the running set when their known tokens fit the
// KV pool, and leave it at their end or, when the pool is full, youngest first back to the front of the queue.
//
// A step holds one row of every decoding sequence, then as many prefill (or replay) rows as the budget leaves, oldest
// sequence first: a long prompt delays others' next token by one chunk at most, and the oldest sequence always
// advances, so nobody starves.
#ifndef DELTAFOLD_ENGINE_SCHEDULER_H_
#define DELTAFOLD_ENGINE_SCHEDULER_H_

#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/sequence.h"

namespace df {

struct SchedulerOptions {
  size_t max_num_seqs = 64;  // <= max_num_batched_tokens
  size_t max_num_batched_tokens = 512;
};

// The next `n_rows` tokens of a sequence, all of phase `phase`.
struct Piece {
  Sequence* sequence = nullptr;
  size_t n_rows = 0;
  kernels::Phase phase = kernels::Phase::kDecode;

  // Whether the row's logits give a new token: the piece reaches the last known one.
  bool ReachesEnd() const { return n_rows == sequence->n_pending(); }
};

// Engine thread only.
class Scheduler {
 public:
  // The pool must hold the longest sequence (`token_limit`) that will ever be enqueued.
  Scheduler(SchedulerOptions options, KvBlocks& blocks) : options_(options), blocks_(blocks) {}

  void Enqueue(std::unique_ptr<Sequence> sequence);

  // The pieces of the next step, neighbours where variant and phase are equal, the base first. Empty only without work.
  // Valid until the next call of anything here.
  std::span<const Piece> PlanStep(int64_t now_us);

  // Takes a sequence out, its blocks still leased; whoever destroys it frees them.
  std::unique_ptr<Sequence> Remove(const Sequence& sequence);
  // Takes out every sequence, waiting or running, that `ends` says yes to.
  std::vector<std::unique_ptr<Sequence>> RemoveIf(const std::function<bool(const Sequence&)>& ends);

  bool HasWork() const { return !waiting_.empty() || !running_.empty(); }
  size_t n_waiting() const { return waiting_.size(); }
  size_t n_running() const { return running_.size(); }
  uint64_t n_preemptions() const { return n_preemptions_; }

 private:
  void PlanDecodes();
  void PlanChunks();
  void Admit(int64_t now_us);
  void AddChunk(Sequence& sequence);
  bool CoverOrPreempt(size_t index);
  void PreemptYoungest();

  SchedulerOptions options_;
  KvBlocks& blocks_;
  std::deque<std::unique_ptr<Sequence>> waiting_;   // ascending arrival, all younger than those running
  std::vector<std::unique_ptr<Sequence>> running_;  // ascending arrival
  std::vector<Piece> pieces_;
  size_t budget_tokens_ = 0;  // rows left in the step being planned
  uint64_t n_preemptions_ = 0;
};

}  // namespace df

#endif  // DELTAFOLD_ENGINE_SCHEDULER_H_
