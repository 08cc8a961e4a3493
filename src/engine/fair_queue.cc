#include "engine/fair_queue.h"

#include <algorithm>
#include <limits>
#include <new>

namespace df {

Status WeightsUnavailable(const Sequence& sequence, const Status& failure) {
  return Unavailable("the variant \"" + sequence.request.variant_name + "\" " + std::string(kCannotBeServed) +
                     failure.message());
}

Status WeightsLate(const Sequence& sequence, int64_t waited_us) {
  return Unavailable("the variant \"" + sequence.request.variant_name + "\" " + std::string(kCannotBeServed) +
                     "its weights were not there within " + std::to_string(waited_us / 1'000'000) +
                     " s (variant-wait-timeout); they are still wanted: try again later");
}

size_t CostTokens(const Sequence& sequence) {
  const size_t n_prompt = sequence.request.prompt.size();
  return n_prompt + std::min(sequence.token_limit - n_prompt, kExpectedAnswerTokens);
}

void FairQueue::Push(std::unique_ptr<Sequence> sequence) {
  const auto [found, is_new] = lines_.try_emplace(sequence->request.variant.get());
  Line& line = found->second;
  const uint64_t arrival = sequence->arrival;
  if (is_new) line.generation = sequence->request.variant;
  try {
    line.waiting.emplace(arrival, std::move(sequence));
    ++size_;
    if (!is_new) return;
    line.order = n_lines_++;
    line.round = round_;
    Join(line);
  } catch (const std::bad_alloc&) {
    if (is_new) {
      size_ -= line.waiting.size();
      lines_.erase(found);
    }
    throw;
  }
}

void FairQueue::Clear() {
  turns_.clear();
  cold_.clear();
  for (auto& [generation, line] : lines_) {
    if (generation != nullptr) generation->EndAsk();
  }
  lines_.clear();
  size_ = n_claims_ = 0;
}

// Among those who have turns, at the round in which the head is covered, or, with a claim, debts are paid.
void FairQueue::Join(Line& line) {
  const bool on_credit = line.claim.weights() != nullptr;
  const int64_t needed = on_credit ? 0 : static_cast<int64_t>(CostTokens(line.head()));
  const int64_t missing = std::max<int64_t>(0, needed - line.deficit);
  line.turn = {line.round + static_cast<uint64_t>((missing + quantum_ - 1) / quantum_), line.order};
  line.is_cold = false;
  turns_.emplace(line.turn, &line);
}

void FairQueue::Leave(Line& line) {
  if (line.is_cold) {
    cold_.erase(line.order);
  } else {
    turns_.erase(line.turn);
  }
}

std::unique_ptr<Sequence> FairQueue::TakeOut(Line& line, uint64_t arrival) {
  const auto found = line.waiting.find(arrival);
  DF_CHECK(found != line.waiting.end());
  std::unique_ptr<Sequence> sequence = std::move(found->second);
  line.waiting.erase(found);
  --size_;
  return sequence;
}

std::unique_ptr<Sequence> FairQueue::Remove(const Sequence& sequence) {
  const auto found = lines_.find(sequence.request.variant.get());
  DF_CHECK(found != lines_.end());
  Line& line = found->second;
  const bool was_head = &line.head() == &sequence;
  if (was_head) Leave(line);
  std::unique_ptr<Sequence> removed = TakeOut(line, sequence.arrival);
  if (line.waiting.empty()) {
    if (line.claim.weights() != nullptr) --n_claims_;
    if (line.generation != nullptr) line.generation->EndAsk();
    lines_.erase(found);
  } else if (was_head && line.is_cold) {
    cold_.emplace(line.order, &line);
  } else if (was_head) {
    Join(line);
  }
  return removed;
}

std::vector<std::unique_ptr<Sequence>> FairQueue::RemoveAll() {
  std::vector<std::unique_ptr<Sequence>> removed;
  for (auto& [generation, line] : lines_) {
    for (auto& [arrival, sequence] : line.waiting) removed.push_back(std::move(sequence));
    if (line.generation != nullptr) line.generation->EndAsk();
  }
  turns_.clear();
  cold_.clear();
  lines_.clear();
  size_ = n_claims_ = 0;
  return removed;
}

// Quanta of the rounds up to `round` have been given. A line that was cold earns nothing by it but the end of its debt.
void FairQueue::PassRounds(Line& line, uint64_t round) {
  if (round <= line.round) return;
  line.deficit += static_cast<int64_t>(round - line.round) * quantum_;
  line.round = round;
}

std::unique_ptr<Sequence> FairQueue::Pop(int64_t now_us, std::vector<FailedSequence>& failed) {
  while (!turns_.empty()) {
    Line& line = *turns_.begin()->second;
    round_ = std::max(round_, line.turn.first);
    if (line.generation != nullptr && line.claim.weights() == nullptr && !Ask(line, now_us, failed)) continue;
    turns_.erase(line.turn);
    PassRounds(line, line.turn.first);
    line.deficit -= static_cast<int64_t>(CostTokens(line.head()));
    std::unique_ptr<Sequence> next = TakeOut(line, line.head().arrival);
    if (line.generation != nullptr) {
      next->lease = std::move(line.claim);
      --n_claims_;
    }
    if (line.waiting.empty()) {
      lines_.erase(line.generation.get());
    } else {
      Join(line);
    }
    return next;
  }
  return nullptr;
}

bool FairQueue::Ask(Line& line, int64_t now_us, std::vector<FailedSequence>& failed) {
  LeaseAttempt attempt = line.generation->TryLease(now_us);
  if (attempt.granted()) {
    line.claim = std::move(attempt.lease);
    ++n_claims_;
    return true;
  }
  if (!attempt.failure.ok()) {
    Fail(line, attempt.failure, failed);
  } else if (!line.is_cold) {
    turns_.erase(line.turn);
    TurnCold(line, now_us);
  }
  return false;
}

void FairQueue::TurnCold(Line& line, int64_t now_us) {
  line.is_cold = true;
  line.cold_since_us = now_us;
  cold_.emplace(line.order, &line);
}

void FairQueue::Fail(Line& line, const Status& failure, std::vector<FailedSequence>& failed) {
  Leave(line);
  size_ -= line.waiting.size();
  for (auto& [arrival, sequence] : line.waiting) {
    Status cause = WeightsUnavailable(*sequence, failure);
    failed.push_back({.sequence = std::move(sequence), .cause = std::move(cause)});
  }
  lines_.erase(line.generation.get());
}

void FairQueue::AskForCold(int64_t now_us, std::vector<FailedSequence>& failed) {
  for (auto at = cold_.begin(); at != cold_.end();) {
    Line& line = *(at++)->second;  // asking may take the line away
    if (!Ask(line, now_us, failed)) continue;
    cold_.erase(line.order);
    const int64_t paid = static_cast<int64_t>(round_ - line.round) * quantum_;
    line.deficit = std::max(line.deficit, std::min<int64_t>(0, line.deficit + paid));
    line.round = round_;
    Join(line);
  }
}

void FairQueue::DropClaims(int64_t now_us) {
  if (n_claims_ == 0) return;
  for (auto at = turns_.begin(); at != turns_.end();) {
    Line& line = *at->second;
    if (line.claim.weights() == nullptr) {
      ++at;
      continue;
    }
    at = turns_.erase(at);
    line.claim.End();
    TurnCold(line, now_us);
  }
  n_claims_ = 0;
}

// Heads have come first, so they are overdue first.
void FairQueue::FailOverdue(int64_t now_us, int64_t longest_us, std::vector<FailedSequence>& failed) {
  for (auto at = cold_.begin(); at != cold_.end();) {
    Line& line = *(at++)->second;  // its last one takes it away
    while (!line.waiting.empty() && now_us - line.waits_since_us() >= longest_us) {
      std::unique_ptr<Sequence> sequence = TakeOut(line, line.head().arrival);
      Status cause = WeightsLate(*sequence, longest_us);
      failed.push_back({.sequence = std::move(sequence), .cause = std::move(cause)});
    }
    if (!line.waiting.empty()) continue;
    cold_.erase(line.order);
    lines_.erase(line.generation.get());
  }
}

int64_t FairQueue::NextOverdueUs(int64_t longest_us) const {
  int64_t next_us = std::numeric_limits<int64_t>::max();
  for (const auto& [order, line] : cold_) next_us = std::min(next_us, line->waits_since_us() + longest_us);
  return next_us;
}

}  // namespace df
