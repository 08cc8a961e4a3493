#include "server/running_answer.h"

#include <algorithm>

#include "server/sse.h"

namespace df::server {
namespace {

// Up to this many pieces that arrived together stay events of their own (clients count them as tokens); a slow reader
// gets the rest joined, so that what is waiting for it stays about as large as its text.
constexpr size_t kMaxSeparateDeltas = 64;
// A histogram takes a lock: gaps are handed over in batches.
constexpr uint64_t kGapsPerBatch = 64;

double Seconds(int64_t us) { return static_cast<double>(us) * 1e-6; }

}  // namespace

RunningAnswer::RunningAnswer(PreparedGeneration prepared, ServerMetrics& metrics, const Clock& clock, Times times)
    : prepared_(std::move(prepared)),
      metrics_(metrics),
      clock_(clock),
      times_(times),
      choices_(prepared_.streams.size(), Choice(prepared_.format.logprob_style())) {}

RunningAnswer::~RunningAnswer() {
  for (size_t i = 0; i < choices_.size(); ++i) {
    if (!choices_[i].end) EndChoice(i, FinishReason::kCancelled, std::nullopt);
  }
  metrics_.ObserveInterToken(gaps_);
}

std::string RunningAnswer::Advance() {
  std::string events;
  for (size_t i = 0; i < choices_.size(); ++i) {
    if (!choices_[i].end) events += AdvanceChoice(i, prepared_.streams[i]->TakeAll());
  }
  if (gaps_.count() >= kGapsPerBatch) metrics_.ObserveInterToken(gaps_);
  return events;
}

std::string RunningAnswer::AdvanceChoice(size_t index, const std::vector<TextDelta>& deltas) {
  Choice& choice = choices_[index];
  const bool join = deltas.size() > kMaxSeparateDeltas;
  std::string events, joined;
  uint64_t n_tokens = 0;
  for (const TextDelta& delta : deltas) n_tokens += delta.tokens.size();
  CountTokens(choice, n_tokens);
  for (const TextDelta& delta : deltas) {
    for (const LikelyTokens& tokens : delta.logprobs) choice.logprobs.Add(tokens);
    if (!delta.text.empty() || !delta.logprobs.empty()) {
      any_text_ = true;
      if (!prepared_.stream)
        choice.text += delta.text;
      else if (join)
        joined += delta.text;
      else
        events += prepared_.format.TextEvent(index, delta.text, choice.logprobs.Take());
    }
    if (!delta.finish) continue;
    const bool failed = *delta.finish == FinishReason::kError || *delta.finish == FinishReason::kCancelled;
    if (failed && !failure_) {
      failure_ = delta.status.ok() ? Cancelled("the generation was cancelled") : delta.status;
    }
    EndChoice(index, *delta.finish, delta.stop_reason);
  }
  if (join && prepared_.stream && (!joined.empty() || !choice.logprobs.empty())) {
    events += prepared_.format.TextEvent(index, joined, choice.logprobs.Take());
  }
  if (choice.end && prepared_.stream && !failure_) events += prepared_.format.EndEvent(index, *choice.end);
  return events;
}

void RunningAnswer::CountTokens(Choice& choice, uint64_t n_tokens) {
  if (n_tokens == 0) return;
  const int64_t now_us = clock_.NowUs();
  if (choice.n_tokens == 0) {
    choice.first_token_us = now_us;
    metrics_.ObserveFirstToken(prepared_.variant_name, Seconds(now_us - times_.arrival_us));
    if (n_tokens > 1) gaps_.Add(0, n_tokens - 1);
  } else {
    gaps_.Add(Seconds(now_us - choice.last_token_us) / static_cast<double>(n_tokens), n_tokens);
  }
  choice.last_token_us = now_us;
  choice.n_tokens += n_tokens;
}

void RunningAnswer::EndChoice(size_t index, FinishReason finish, std::optional<std::string> stop_reason) {
  Choice& choice = choices_[index];
  if (choice.end) return;
  choice.end = ChoiceEnd{.finish = finish, .stop_reason = std::move(stop_reason)};
  ++n_ended_;
  const Usage& usage = prepared_.streams[index]->usage();
  RequestSample sample;
  sample.variant = prepared_.variant_name;
  sample.finished_reason = FinishReasonName(finish);
  sample.prompt_tokens = usage.prompt_tokens;
  sample.generation_tokens = usage.completion_tokens;
  sample.e2e_s = Seconds(clock_.NowUs() - times_.arrival_us);
  if (choice.n_tokens > 0) {
    sample.queue_s = Seconds(usage.queue_us);
    sample.prefill_s = std::max(0.0, Seconds(choice.first_token_us - times_.arrival_us - usage.queue_us));
    sample.decode_s = Seconds(choice.last_token_us - choice.first_token_us);
  }
  if (choice.n_tokens > 1) sample.per_output_token_s = *sample.decode_s / static_cast<double>(choice.n_tokens - 1);
  metrics_.ObserveEnd(sample);
}

Usage RunningAnswer::TotalUsage() const {
  Usage total;
  for (const auto& stream : prepared_.streams) {
    total.prompt_tokens += stream->usage().prompt_tokens;
    total.completion_tokens += stream->usage().completion_tokens;
  }
  return total;
}

std::string RunningAnswer::WholeBody() {
  std::vector<AnswerFormat::WholeChoice> whole;
  for (Choice& choice : choices_) {
    whole.push_back({choice.text, choice.end.value_or(ChoiceEnd{}), choice.logprobs.Take()});
  }
  return prepared_.format.WholeBody(whole, TotalUsage());
}

std::string_view RunningAnswer::finish_name() const {
  if (choices_.empty() || !choices_[0].end) return FinishReasonName(FinishReason::kCancelled);
  return FinishReasonName(choices_[0].end->finish);
}

}  // namespace df::server
