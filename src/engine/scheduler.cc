#include "engine/scheduler.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <limits>
#include <new>

namespace df {
namespace {

// Asks are repeated this often without news: far more often than the store forgets one.
constexpr int64_t kAskAgainUs = 5'000'000;
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

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

using Sequences = std::vector<std::unique_ptr<Sequence>>;

void InsertByTicket(Sequences& sequences, std::unique_ptr<Sequence> sequence) {
  const auto at = std::upper_bound(sequences.begin(), sequences.end(), sequence,
                                   [](const auto& a, const auto& b) { return a->ticket < b->ticket; });
  sequences.insert(at, std::move(sequence));
}

std::unique_ptr<Sequence> TakeFrom(Sequences& sequences, const Sequence& wanted) {
  const auto found =
      std::find_if(sequences.begin(), sequences.end(), [&](const auto& s) { return s.get() == &wanted; });
  if (found == sequences.end()) return nullptr;
  std::unique_ptr<Sequence> taken = std::move(*found);
  sequences.erase(found);
  return taken;
}

}  // namespace

void Scheduler::Enqueue(std::unique_ptr<Sequence> sequence) {
  const std::pair deadline(sequence->deadline_us, static_cast<const Sequence*>(sequence.get()));
  const auto named = by_id_.emplace(sequence->request.id, sequence.get());
  try {
    if (sequence->deadline_us != kNoDeadline) by_deadline_.insert(deadline);
    waiting_.Push(std::move(sequence));
  } catch (const std::bad_alloc&) {
    by_deadline_.erase(deadline);
    by_id_.erase(named);
    throw;
  }
}

void Scheduler::Clear() {
  waiting_.Clear();
  for (const auto& sequence : returning_) {
    if (sequence != nullptr && sequence->NeedsWeights()) sequence->request.variant->EndAsk();
  }
  entering_.reset();
  returning_.clear();
  running_.clear();
  failed_.clear();
  pieces_.clear();
  by_id_.clear();
  by_deadline_.clear();
}

std::span<const Piece> Scheduler::PlanStep(int64_t now_us) {
  pieces_.clear();
  budget_tokens_ = options_.max_num_batched_tokens;
  PlanDecodes();
  PlanChunks();
  Ask(now_us);
  if (options_.longest_weights_wait_us > 0) waiting_.FailOverdue(now_us, options_.longest_weights_wait_us, failed_);
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
  Sequence& youngest = *running_.back();
  youngest.kv.Release();
  youngest.n_cached = 0;
  youngest.lease.End();
  youngest.is_cold = false;  // it may have its weights back at once, if they are still there
  InsertByTicket(returning_, std::move(running_.back()));
  running_.pop_back();
  ++stats_.n_preemptions;
}

void Scheduler::Ask(int64_t now_us) {
  const bool again = asks_again_ || now_us >= ask_again_us_;
  if (again) ask_again_us_ = now_us + kAskAgainUs;
  if (AskForReturning(again, now_us)) {
    // Those who wait for weights that are being waited for must hold none: the room may be what is missing.
    waiting_.DropClaims(now_us);
    return;
  }
  if (!again) return;
  asks_again_ = false;
  waiting_.AskForCold(now_us, failed_);
}

// Whether one is left without weights.
bool Scheduler::AskForReturning(bool again, int64_t now_us) {
  bool is_left = false;
  for (auto& sequence : returning_) {
    if (!sequence->NeedsWeights() || (sequence->is_cold && !again)) {
      is_left |= sequence->NeedsWeights();
      continue;
    }
    LeaseAttempt attempt = sequence->request.variant->TryLease(now_us);
    if (attempt.granted()) {
      sequence->lease = std::move(attempt.lease);
    } else if (attempt.failure.ok()) {
      sequence->is_cold = is_left = true;
    } else {
      Status cause = WeightsUnavailable(*sequence, attempt.failure);
      failed_.push_back({.sequence = std::move(sequence), .cause = std::move(cause)});
    }
  }
  std::erase(returning_, nullptr);
  return is_left;
}

void Scheduler::Admit(int64_t now_us) {
  while (running_.size() < options_.max_num_seqs && budget_tokens_ > 0) {
    std::unique_ptr<Sequence>* next = NextToEnterOrNull(now_us);
    if (next == nullptr || !TryEnter(*next, now_us)) return;
  }
}

// The oldest preempted one that has its weights, else whose turn it is. Those who come back keep a place meanwhile.
std::unique_ptr<Sequence>* Scheduler::NextToEnterOrNull(int64_t now_us) {
  for (auto& sequence : returning_) {
    if (!sequence->NeedsWeights()) return &sequence;
  }
  if (entering_ == nullptr && running_.size() + returning_.size() < options_.max_num_seqs) {
    entering_ = waiting_.Pop(now_us, failed_);
  }
  return entering_ == nullptr ? nullptr : &entering_;
}

bool Scheduler::TryEnter(std::unique_ptr<Sequence>& next, int64_t now_us) {
  if (!TryTakeBlocks(*next)) return false;
  Sequence& sequence = *next;
  if (sequence.ticket == 0) {
    sequence.ticket = ++last_ticket_;
    sequence.admitted_us = now_us;
    sequence.place.End();
    const bool looked_up = sequence.prefix_domain != nullptr && sequence.n_prompt_to_tell() == 0;
    if (looked_up) stats_.prefix_queries += sequence.n_tokens();
    stats_.prefix_hits += sequence.n_cached;
  }
  InsertByTicket(running_, std::move(next));
  std::erase(returning_, nullptr);
  AddChunk(sequence);
  return true;
}

bool Scheduler::TryTakeBlocks(Sequence& sequence) {
  blocks_.FindPrefix(sequence.prefix_domain, sequence.known_tokens(), sequence.n_shareable_blocks(), match_);
  // A spare block for everyone who runs already: they can all go on for 16 tokens before anybody is preempted.
  const size_t n_needed = KvBlocksFor(sequence.n_tokens()) - match_.n_held + running_.size();
  if (blocks_.n_free() < n_needed) return false;
  sequence.kv.Adopt(match_);
  sequence.n_cached = match_.blocks.size() * kernels::kKvBlockTokens;
  DF_CHECK(sequence.kv.TryCover(sequence.n_tokens()));
  return true;
}

int64_t Scheduler::NextEventUs() const {
  const int64_t deadline_us = by_deadline_.empty() ? kNever : by_deadline_.begin()->first;
  const int64_t overdue_us =
      options_.longest_weights_wait_us > 0 ? waiting_.NextOverdueUs(options_.longest_weights_wait_us) : kNever;
  return HasWork() ? std::min({deadline_us, overdue_us, ask_again_us_}) : kNever;
}

std::unique_ptr<Sequence> Scheduler::Remove(const Sequence& sequence) {
  Forget(sequence);
  return TakeOut(sequence);
}

std::unique_ptr<Sequence> Scheduler::TakeOut(const Sequence& sequence) {
  if (entering_.get() == &sequence) return std::move(entering_);
  if (sequence.ticket == 0) return waiting_.Remove(sequence);
  if (std::unique_ptr<Sequence> taken = TakeFrom(running_, sequence); taken != nullptr) return taken;
  std::unique_ptr<Sequence> taken = TakeFrom(returning_, sequence);
  DF_CHECK(taken != nullptr);
  if (taken->NeedsWeights()) {
    taken->request.variant->EndAsk();
    AskAgain();  // others may wait for the same, and for a turn that was this one's
  }
  return taken;
}

void Scheduler::Forget(const Sequence& sequence) {
  const auto [begin, end] = by_id_.equal_range(sequence.request.id);
  by_id_.erase(std::find_if(begin, end, [&](const auto& entry) { return entry.second == &sequence; }));
  by_deadline_.erase({sequence.deadline_us, &sequence});
}

Sequences Scheduler::RemoveById(const std::string& id) {
  Sequences removed;
  for (auto found = by_id_.find(id); found != by_id_.end(); found = by_id_.find(id)) {
    removed.push_back(Remove(*found->second));
  }
  return removed;
}

Sequences Scheduler::RemoveExpired(int64_t now_us) {
  Sequences removed;
  while (!by_deadline_.empty() && by_deadline_.begin()->first <= now_us) {
    removed.push_back(Remove(*by_deadline_.begin()->second));
  }
  return removed;
}

std::vector<FailedSequence> Scheduler::TakeFailed() {
  for (const FailedSequence& failed : failed_) Forget(*failed.sequence);
  return std::exchange(failed_, {});
}

Sequences Scheduler::RemoveAll() {
  Sequences removed = waiting_.RemoveAll();
  for (const auto& sequence : returning_) {
    if (sequence->NeedsWeights()) sequence->request.variant->EndAsk();
  }
  for (Sequences* from : {&running_, &returning_}) {
    std::move(from->begin(), from->end(), std::back_inserter(removed));
    from->clear();
  }
  if (entering_ != nullptr) removed.push_back(std::move(entering_));
  for (FailedSequence& failed : TakeFailed()) removed.push_back(std::move(failed.sequence));
  by_id_.clear();
  by_deadline_.clear();
  return removed;
}

}  // namespace df
