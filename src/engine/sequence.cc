#include "engine/sequence.h"

#include <algorithm>

namespace df {
namespace {

constexpr int64_t kMaxTimeoutMs = int64_t{365} * 86'400'000;  // a year: no sum overflows

// Until min_tokens none of these is ever drawn (engine.cc forbids them).
std::optional<FinishReason> FinishAfter(const Sequence& sequence, int32_t token) {
  const std::vector<int32_t>& stops = sequence.stop_tokens;
  if (std::binary_search(stops.begin(), stops.end(), token)) return FinishReason::kStop;
  if (sequence.n_tokens() >= sequence.token_limit) return FinishReason::kLength;
  return std::nullopt;
}

int64_t QueueUs(const Sequence& sequence, int64_t now_us) {
  return (sequence.admitted_us < 0 ? now_us : sequence.admitted_us) - sequence.submitted_us;
}

}  // namespace

std::unique_ptr<Sequence> MakeSequence(GenerationRequest request, RequestLimits limits, int64_t submitted_us,
                                       KvBlocks& blocks) {
  auto sequence = std::make_unique<Sequence>(std::move(request), blocks);
  const SamplingParams& params = sequence->request.params;
  const size_t room = limits.context_tokens - sequence->request.prompt.size();
  sequence->token_limit = sequence->request.prompt.size() + std::min(room, params.max_tokens.value_or(room));
  sequence->stop_tokens = StopTokens(sequence->request, limits.vocab);
  sequence->submitted_us = submitted_us;
  if (const auto timeout_ms = sequence->request.timeout_ms) {
    sequence->deadline_us = submitted_us + std::clamp<int64_t>(*timeout_ms, 0, kMaxTimeoutMs) * 1000;
  }
  return sequence;
}

TokenEvent AppendToken(Sequence& sequence, int32_t token, int64_t now_us) {
  TokenEvent event;
  event.token = token;
  event.time_us = now_us;
  event.queue_us = QueueUs(sequence, now_us);
  if (token < 0) {
    event.finish = FinishReason::kError;
    event.status = Internal("non-finite logits: the weights of \"" + sequence.request.variant_name +
                            "\" give no number for this prompt");
    return event;
  }
  sequence.generated.push_back(token);
  event.finish = FinishAfter(sequence, token);
  return event;
}

TokenEvent TellPrompt(Sequence& sequence, size_t n_rows, std::vector<kernels::TokenLogprob> logprobs, int64_t now_us) {
  sequence.n_prompt_told += n_rows;
  TokenEvent event;
  event.n_prompt = n_rows;
  event.logprobs = std::move(logprobs);
  event.time_us = now_us;
  event.queue_us = QueueUs(sequence, now_us);
  return event;
}

TokenEvent Complete(const Sequence& sequence, int64_t now_us) {
  TokenEvent event;
  event.finish = FinishReason::kLength;
  event.time_us = now_us;
  event.queue_us = QueueUs(sequence, now_us);
  return event;
}

TokenEvent CutShort(const Sequence& sequence, Status why, int64_t now_us) {
  TokenEvent event;
  const bool is_wish = why.code() == StatusCode::kCancelled || why.code() == StatusCode::kDeadlineExceeded;
  event.finish = is_wish ? FinishReason::kCancelled : FinishReason::kError;
  event.status = std::move(why);
  event.time_us = now_us;
  event.queue_us = QueueUs(sequence, now_us);
  return event;
}

}  // namespace df
