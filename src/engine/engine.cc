// The loop. Everything here happens on one thread, step after step: news in, ends of those who do not want to wait any
// longer, plan, model, draw, tokens out. No call goes back up: clients are told through their event queues.
#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include "base/rng.h"
#include "engine/engine_loop.h"

namespace df {

void EngineLoop::Run() {
  context_.pool.BindCaller();
  News news;
  while (inbox_.Take(PatienceUs(), news)) {
    busy_since_us_.store(clock_.NowUs(), std::memory_order_relaxed);
    try {
      Turn(news);
    } catch (const std::bad_alloc&) {
      EndWithoutMemory();
    }
    PublishStats();
    if (!is_stepping_) busy_since_us_.store(kIdle, std::memory_order_relaxed);
  }
  try {
    Accept(news);
    End(scheduler_.RemoveAll(), Cancelled("the engine is shutting down"));
  } catch (const std::bad_alloc&) {
    EndWithoutMemory();
  }
  PublishStats();
}

void EngineLoop::Turn(News& news) {
  Accept(news);
  EndCancelled(news);
  End(scheduler_.RemoveExpired(clock_.NowUs()), DeadlineExceeded("the time allowed for the request is over"));
  if (news.woken) scheduler_.AskAgain();
  Step();
}

// Those under way end, told by their promises, and the engine goes on: whatever was half done is gone with them.
void EngineLoop::EndWithoutMemory() {
  is_stepping_ = false;
  scheduler_.Clear();
}

// Sleeps while there is nothing to do: without work, or while all of it waits for weights.
int64_t EngineLoop::PatienceUs() const {
  if (is_stepping_) return 0;
  const int64_t next_us = scheduler_.NextEventUs();
  return next_us == kNoDeadline ? kNoDeadline : std::max<int64_t>(0, next_us - clock_.NowUs());
}

void EngineLoop::Accept(News& news) {
  for (Submission& submission : news.submitted) {
    try {
      AcceptOne(submission);
    } catch (const std::bad_alloc&) {
      submission.promise = {};  // it ends alone
    }
  }
}

void EngineLoop::AcceptOne(Submission& submission) {
  const RequestLimits limits = LimitsOf(submission.request);
  auto sequence = MakeSequence(std::move(submission.request), limits, submission.submitted_us, blocks_);
  sequence->seed = sequence->request.params.seed.value_or(RandomBits(seed_, n_accepted_));
  sequence->arrival = n_accepted_++;
  sequence->place = std::move(submission.place);
  sequence->promise = std::move(submission.promise);
  if (options_.enable_prefix_caching) SharePrefix(*sequence);
  scheduler_.Enqueue(std::move(sequence));
}

void EngineLoop::SharePrefix(Sequence& sequence) const {
  const GenerationRequest& request = sequence.request;
  const std::string digest = request.variant ? request.variant->info().digest : "";
  if (request.variant && digest.empty()) return;  // nobody knows what it is
  sequence.prefix_domain = MakePrefixDomain({.base_fingerprint = base_->fingerprint,
                                             .kv_dtype = DTypeName(options_.kv_dtype),
                                             .generation_digest = digest,
                                             .cache_salt = request.cache_salt});
  sequence.shares_answer = !options_.kernels.batch_invariant;
}

void EngineLoop::EndCancelled(const News& news) {
  for (const std::string& id : news.cancelled) End(scheduler_.RemoveById(id), Cancelled("cancelled"));
}

void EngineLoop::EndFailed() {
  for (FailedSequence& failed : scheduler_.TakeFailed()) {
    std::vector<std::unique_ptr<Sequence>> one;
    one.push_back(std::move(failed.sequence));
    End(std::move(one), failed.cause);
  }
}

void EngineLoop::Step() {
  const std::span<const Piece> pieces = scheduler_.PlanStep(clock_.NowUs());
  is_stepping_ = !pieces.empty();
  EndFailed();
  PublishStats();  // a step may be long: who waits and who runs is known now
  if (pieces.empty()) return;
  const int64_t start_us = clock_.NowUs();
  BuildStep(pieces, base_->config.vocab, step_);
  decoder_.Forward(context_, step_.batch, kv_pool_);
  if (!step_.prompt_parts.empty()) logprobs_.OfPrompts(context_, decoder_, step_);
  Draw();
  if (const Status intact = base_->CheckIntact(); !intact.ok()) {
    return End(scheduler_.RemoveAll(), intact);
  }
  for (const Piece& piece : pieces) piece.sequence->Advance(piece.n_rows);
  DeliverPrompts();
  DeliverTokens();
  CountStep(start_us);
}

void EngineLoop::Draw() {
  if (step_.sampling.empty()) return;
  const MatView<float> logits = decoder_.Logits(context_, step_.batch.logit_rows);
  logprobs_.BeforeDraw(context_, logits, step_);
  for (size_t i = 0; i < step_.sampling.size(); ++i) {
    if (step_.sampling[i]->MustGoOn()) kernels::Forbid(logits, i, step_.sampling[i]->stop_tokens);
  }
  kernels::Sample(context_, logits, step_.sample_rows, step_.sampled);
  logprobs_.AfterDraw(logits, step_);
}

// What the step says of prompts. Sequences that end by it, since their logits are broken, neither draw nor complete any
// more.
void EngineLoop::DeliverPrompts() {
  for (PromptPart& part : step_.prompt_parts) {
    Sequence& sequence = *part.sequence;
    TokenEvent event = part.is_broken ? AppendToken(sequence, -1, clock_.NowUs())
                                      : TellPrompt(sequence, part.n_rows, std::move(part.logprobs), clock_.NowUs());
    if (Deliver(sequence, std::move(event))) continue;
    std::replace(step_.sampling.begin(), step_.sampling.end(), part.sequence, static_cast<Sequence*>(nullptr));
    std::replace(step_.complete.begin(), step_.complete.end(), part.sequence, static_cast<Sequence*>(nullptr));
  }
}

void EngineLoop::DeliverTokens() {
  for (size_t i = 0; i < step_.sampling.size(); ++i) {
    if (step_.sampling[i] == nullptr) continue;
    Sequence& sequence = *step_.sampling[i];
    const int32_t token = step_.sampled[i].token;
    TokenEvent event = AppendToken(sequence, token, clock_.NowUs());  // -1: its logits are broken
    if (token >= 0) ++counters_.generation_tokens;
    if (token >= 0 && sequence.generated.size() == 1) counters_.prompt_tokens += sequence.request.prompt.size();
    if (token >= 0) event.logprobs = std::move(step_.logprobs[i]);
    Deliver(sequence, std::move(event));
  }
  for (Sequence* sequence : step_.complete) {
    if (sequence == nullptr) continue;
    counters_.prompt_tokens += sequence->request.prompt.size();
    Deliver(*sequence, Complete(*sequence, clock_.NowUs()));
  }
}

// Tells a client, and takes its sequence out where that was the last word, or there is no memory for it. Its blocks are
// free before its client hears of the end. Whether the sequence is still there.
bool EngineLoop::Deliver(Sequence& sequence, TokenEvent event) {
  const std::shared_ptr<EventQueue> events = sequence.request.events;
  if (!event.finish) {
    if (events->Push(std::move(event))) return true;
    scheduler_.Remove(sequence);
    return false;
  }
  const EndPromise promise = std::move(sequence.promise);
  scheduler_.Remove(sequence);
  events->Push(std::move(event));
  return false;
}

void EngineLoop::CountStep(int64_t start_us) {
  const kernels::Cost cost = decoder_.step_cost();
  ++counters_.steps;
  counters_.step_bytes += cost.bytes;
  counters_.step_flops += cost.flops;
  counters_.step_seconds += static_cast<double>(clock_.NowUs() - start_us) * 1e-6;
}

void EngineLoop::End(std::vector<std::unique_ptr<Sequence>> sequences, const Status& why) {
  for (std::unique_ptr<Sequence>& sequence : sequences) {
    const std::shared_ptr<EventQueue> events = sequence->request.events;
    TokenEvent event = CutShort(*sequence, why, clock_.NowUs());
    const EndPromise promise = std::move(sequence->promise);
    sequence.reset();
    events->Push(std::move(event));
  }
}

void EngineLoop::PublishStats() {
  counters_.n_running = scheduler_.n_running();
  counters_.kv_blocks_used = blocks_.n_total() - blocks_.n_free();
  counters_.preemptions = scheduler_.stats().n_preemptions;
  counters_.prefix_cache_queries = scheduler_.stats().prefix_queries;
  counters_.prefix_cache_hits = scheduler_.stats().prefix_hits;
  counters_.activation_bytes = decoder_.activation_bytes() + context_.scratch.bytes();
  inbox_.SetWaiting(scheduler_.n_waiting());
  const std::scoped_lock lock(stats_mutex_);
  stats_ = counters_;
}

}  // namespace df
