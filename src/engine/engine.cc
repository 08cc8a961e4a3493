// The loop. Everything here happens on one thread, step after step: news in, ends of those who do not want to wait any
// longer, plan, model, draw, tokens out. No call goes back up: clients are told through their event queues.
#include <new>
#include <string>
#include <unordered_set>
#include <utility>

#include "base/rng.h"
#include "engine/engine_loop.h"

namespace df {

void EngineLoop::Run() {
  context_.pool.BindCaller();
  News news;
  while (inbox_.Take(scheduler_.HasWork(), news)) {  // sleeps while there is nothing to do
    busy_since_us_.store(clock_.NowUs(), std::memory_order_relaxed);
    Accept(news);
    EndCancelled(news);
    EndExpired();
    try {
      Step();
    } catch (const std::bad_alloc&) {  // those under way end, the engine goes on
      EndWhere([](const Sequence&) { return true; }, ResourceExhausted("no memory for the next step of the model"));
    }
    PublishStats();
    if (!scheduler_.HasWork()) busy_since_us_.store(kIdle, std::memory_order_relaxed);
  }
  Accept(news);
  EndWhere([](const Sequence&) { return true; }, Cancelled("the engine is shutting down"));
  PublishStats();
}

void EngineLoop::Accept(News& news) {
  for (Submission& submission : news.submitted) {
    const RequestLimits limits = LimitsOf(submission.request);
    auto sequence = MakeSequence(std::move(submission.request), limits, submission.submitted_us, blocks_);
    sequence->seed = sequence->request.params.seed.value_or(RandomBits(seed_, n_accepted_));
    sequence->arrival = n_accepted_++;
    scheduler_.Enqueue(std::move(sequence));
  }
}

void EngineLoop::EndCancelled(const News& news) {
  if (news.cancelled.empty()) return;
  const std::unordered_set<std::string> ids(news.cancelled.begin(), news.cancelled.end());
  EndWhere([&](const Sequence& sequence) { return ids.contains(sequence.request.id); }, Cancelled("cancelled"));
}

void EngineLoop::EndExpired() {
  const int64_t now_us = clock_.NowUs();
  EndWhere([&](const Sequence& sequence) { return sequence.deadline_us <= now_us; },
           DeadlineExceeded("the time allowed for the request is over"));
}

void EngineLoop::Step() {
  const std::span<const Piece> pieces = scheduler_.PlanStep(clock_.NowUs());
  PublishStats();  // a step may be long: who waits and who runs is known now
  if (pieces.empty()) return;
  const int64_t start_us = clock_.NowUs();
  BuildStep(pieces, base_->config.vocab, step_);
  const MatView<float> logits = decoder_.Step(context_, step_.batch, kv_pool_);
  if (const Status intact = base_->CheckIntact(); !intact.ok()) {
    return EndWhere([](const Sequence&) { return true; }, intact);
  }
  for (size_t i = 0; i < step_.sampling.size(); ++i) {
    if (step_.sampling[i]->MustGoOn()) kernels::Forbid(logits, i, step_.sampling[i]->stop_tokens);
  }
  if (!step_.sampling.empty()) kernels::Sample(context_, logits, step_.sample_rows, step_.sampled);
  for (const Piece& piece : pieces) piece.sequence->n_cached += piece.n_rows;
  for (size_t i = 0; i < step_.sampling.size(); ++i) Deliver(*step_.sampling[i], step_.sampled[i].token);
  CountStep(start_us);
}

// Hands a sequence its next token (-1: its logits are broken) and takes it out where that was the last one. Its blocks
// are free before its client hears of the end.
void EngineLoop::Deliver(Sequence& sequence, int32_t token) {
  TokenEvent event = AppendToken(sequence, token, clock_.NowUs());
  if (token >= 0) ++counters_.generation_tokens;
  if (token >= 0 && sequence.generated.size() == 1) counters_.prompt_tokens += sequence.request.prompt.size();
  const std::shared_ptr<EventQueue> events = sequence.request.events;
  if (event.finish) scheduler_.Remove(sequence);
  events->Push(std::move(event));
}

void EngineLoop::CountStep(int64_t start_us) {
  const kernels::Cost cost = decoder_.step_cost();
  ++counters_.steps;
  counters_.step_bytes += cost.bytes;
  counters_.step_flops += cost.flops;
  counters_.step_seconds += static_cast<double>(clock_.NowUs() - start_us) * 1e-6;
}

void EngineLoop::EndWhere(const std::function<bool(const Sequence&)>& ends, const Status& why) {
  for (std::unique_ptr<Sequence>& sequence : scheduler_.RemoveIf(ends)) {
    const std::shared_ptr<EventQueue> events = sequence->request.events;
    TokenEvent event = CutShort(*sequence, why, clock_.NowUs());
    sequence.reset();
    events->Push(std::move(event));
  }
}

void EngineLoop::PublishStats() {
  counters_.n_running = scheduler_.n_running();
  counters_.kv_blocks_used = blocks_.n_total() - blocks_.n_free();
  counters_.preemptions = scheduler_.n_preemptions();
  counters_.activation_bytes = decoder_.activation_bytes() + context_.scratch.bytes();
  inbox_.SetWaiting(scheduler_.n_waiting());
  const std::scoped_lock lock(stats_mutex_);
  stats_ = counters_;
}

}  // namespace df
