#include "engine/scheduler.h"

#include <algorithm>
#include <functional>

namespace df {
namespace {

bool IsNextTokenRow(const Sequence& sequence) {
  return sequence.phase() == kernels::Phase::kDecode && sequence.n_pending() == 1;
}

bool ByVariantPhaseArrival(const Piece& a, const Piece& b) {
  const VariantWeights* left = a.sequence->lease.weights();
  const VariantWeights* right = b.sequence->lease.weights();
  if (left != right) return std::less<>()(left, right);  // null, the base, is least
  if (a.phase != b.phase) return a.phase < b.phase;
  return a.sequence->arrival < b.sequence->arrival;
}

template <typename Container>
void MoveIf(Container& from, const std::function<bool(const Sequence&)>& ends,
            std::vector<std::unique_ptr<Sequence>>& to) {
  for (auto& sequence : from) {
    if (ends(*sequence)) to.push_back(std::move(sequence));
  }
  std::erase(from, nullptr);
}

}  // namespace

void Scheduler::Enqueue(std::unique_ptr<Sequence> sequence) { waiting_.push_back(std::move(sequence)); }

std::span<const Piece> Scheduler::PlanStep(int64_t now_us) {
  pieces_.clear();
  budget_tokens_ = options_.max_num_batched_tokens;
  PlanDecodes();
  PlanChunks();
  Admit(now_us);
  std::sort(pieces_.begin(), pieces_.end(), ByVariantPhaseArrival);
  return pieces_;
}

void Scheduler::PlanDecodes() {
  // Victims are younger than the sequence that needs room, so none of them is in the plan yet.
  for (size_t i = 0; i < running_.size(); ++i) {
    if (!IsNextTokenRow(*running_[i])) continue;
    if (!CoverOrPreempt(i)) return;
    pieces_.push_back({.sequence = running_[i].get(), .n_rows = 1, .phase = kernels::Phase::kDecode});
    --budget_tokens_;
  }
}

void Scheduler::PlanChunks() {
  for (const auto& sequence : running_) {
    if (budget_tokens_ == 0) return;
    if (!IsNextTokenRow(*sequence)) AddChunk(*sequence);
  }
}

void Scheduler::Admit(int64_t now_us) {
  while (!waiting_.empty() && running_.size() < options_.max_num_seqs && budget_tokens_ > 0) {
    Sequence& next = *waiting_.front();
    // A spare block for everyone who runs already: they can all go on for 16 tokens before anybody is preempted.
    const size_t spare = running_.size();
    if (blocks_.n_free() < KvBlocksFor(next.n_tokens()) + spare) return;
    if (next.request.variant != nullptr) {
      LeaseAttempt attempt = next.request.variant->TryLease(now_us);
      if (!attempt.granted()) return;
      next.lease = std::move(attempt.lease);
    }
    DF_CHECK(next.kv.TryCover(next.n_tokens()));
    if (next.admitted_us < 0) next.admitted_us = now_us;
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
    AddChunk(next);
  }
}

void Scheduler::AddChunk(Sequence& sequence) {
  const size_t n_rows = std::min(budget_tokens_, sequence.n_runnable());
  pieces_.push_back({.sequence = &sequence, .n_rows = n_rows, .phase = sequence.phase()});
  budget_tokens_ -= n_rows;
}

// False when running_[index] was itself the youngest and had to go.
bool Scheduler::CoverOrPreempt(size_t index) {
  Sequence& sequence = *running_[index];
  while (!sequence.kv.TryCover(sequence.n_tokens())) {
    const bool is_youngest = index + 1 == running_.size();
    DF_CHECK(running_.size() > 1);
    PreemptYoungest();
    if (is_youngest) return false;
  }
  return true;
}

void Scheduler::PreemptYoungest() {
  running_.back()->kv.Release();
  running_.back()->n_cached = 0;
  running_.back()->lease.End();
  waiting_.push_front(std::move(running_.back()));
  running_.pop_back();
  ++n_preemptions_;
}

std::unique_ptr<Sequence> Scheduler::Remove(const Sequence& sequence) {
  auto removed = RemoveIf([&](const Sequence& candidate) { return &candidate == &sequence; });
  DF_CHECK(removed.size() == 1);
  return std::move(removed.front());
}

std::vector<std::unique_ptr<Sequence>> Scheduler::RemoveIf(const std::function<bool(const Sequence&)>& ends) {
  std::vector<std::unique_ptr<Sequence>> removed;
  MoveIf(running_, ends, removed);
  MoveIf(waiting_, ends, removed);
  return removed;
}

}  // namespace df
