#include "engine/session.h"

#include <algorithm>
#include <span>
#include <utility>

#include "engine/prompt_tokens.h"
#include "engine/stop_matcher.h"
#include "text/text_stream.h"

namespace df {
namespace {

// An id that the tokenizer does not have (padding of the vocabulary) has no text.
std::string OrNothing(Result<std::string> text) { return text.ok() ? std::move(*text) : std::string(); }

class EngineTextStream final : public TextStream {
 public:
  EngineTextStream(Engine& engine, TextRequest request, StopMatcher matcher, std::vector<int32_t> prompt)
      : engine_(engine),
        request_(std::move(request)),
        prompt_(std::move(prompt)),
        decoded_(request_.variant->text->tokenizer, {.skip_special_tokens = request_.skip_special_tokens}),
        matcher_(std::move(matcher)),
        usage_{.prompt_tokens = prompt_.size()} {}

  ~EngineTextStream() override {
    events_->SetWaker({});
    Cancel();
  }

  Status Submit(std::function<void()> wake) {
    events_->SetWaker(std::move(wake));
    const bool is_base = request_.variant->IsBase();
    Status status = engine_.Submit({.id = request_.id,
                                    .prompt = prompt_,
                                    .variant = request_.variant->generation,
                                    .variant_name = is_base ? std::string() : request_.variant->name,
                                    .cache_salt = request_.cache_salt,
                                    .params = request_.params,
                                    .eos_ids = request_.variant->eos_ids,
                                    .events = events_,
                                    .timeout_ms = request_.timeout_ms});
    ended_ = !status.ok();
    return status;
  }

  std::vector<TextDelta> TakeAll() override { return ToText(events_->TakeAll()); }

  std::vector<TextDelta> TakeAllBlocking() override {
    std::vector<TextDelta> deltas;
    while (deltas.empty() && !ended_) deltas = ToText(events_->TakeAllBlocking());
    return deltas;
  }

  const Usage& usage() const override { return usage_; }
  const std::vector<int32_t>& prompt() const override { return prompt_; }

  void Cancel() override {
    if (!ended_) engine_.Cancel(request_.id);
  }

 private:
  std::vector<TextDelta> ToText(const std::vector<TokenEvent>& events) {
    std::vector<TextDelta> deltas;
    for (const TokenEvent& event : events) {
      if (ended_) break;
      usage_.queue_us = event.queue_us;
      const bool is_failure = event.finish && !event.status.ok();
      if (request_.echo && !is_failure) TakePrompt(event);
      TakeToken(event);
      if (event.finish && !next_.finish) TakeEnd(event);
      if (next_.text.empty() && !next_.finish && event.n_prompt == 0) continue;
      ended_ = next_.finish.has_value();
      deltas.push_back(std::exchange(next_, {}));
    }
    return deltas;
  }

  // Nothing of the prompt goes out before the engine has: what is wrong before is an error, not an answer.
  void TakePrompt(const TokenEvent& event) {
    if (!echoed_) {
      echoed_ = true;
      next_.text += PromptText();
      if (request_.params.prompt_logprobs) next_.logprobs.push_back({.token = {.bytes = BytesOf(prompt_[0])}});
    }
    const size_t n_each = event.n_prompt == 0 ? 0 : event.logprobs.size() / event.n_prompt;
    for (size_t i = 0; i < event.n_prompt; ++i) {
      next_.logprobs.push_back(ToLikely(std::span(event.logprobs).subspan(i * n_each, n_each)));
    }
  }

  std::string PromptText() const {
    if (!request_.prompt_text.empty()) return request_.prompt_text;
    return OrNothing(request_.variant->text->tokenizer->Decode(prompt_, {.skip_special_tokens = false}));
  }

  std::string BytesOf(int32_t token) const { return OrNothing(request_.variant->text->tokenizer->TokenBytes(token)); }

  LikelyTokens ToLikely(std::span<const kernels::TokenLogprob> row) const {
    const auto spelled = [&](const kernels::TokenLogprob& one) {
      return TokenLikelihood{.bytes = BytesOf(one.token), .logprob = one.logprob};
    };
    LikelyTokens likely = {.token = spelled(row[0])};
    for (const kernels::TokenLogprob& one : row.subspan(1)) likely.top.push_back(spelled(one));
    return likely;
  }

  void TakeToken(const TokenEvent& event) {
    if (event.token < 0) return;
    ++usage_.completion_tokens;
    next_.tokens.push_back(event.token);
    if (!event.logprobs.empty()) next_.logprobs.push_back(ToLikely(event.logprobs));
    const bool is_stop_token = event.finish == FinishReason::kStop;
    if (is_stop_token && !request_.include_stop_str_in_output) return;
    TakeText(OrNothing(decoded_.Push(event.token)));
    if (next_.finish) engine_.Cancel(request_.id);  // a stop string: the engine knows nothing of it
  }

  void TakeText(std::string_view piece) {
    const bool armed = usage_.completion_tokens > request_.params.min_tokens;
    StopMatcher::Found found = matcher_.Feed(piece, armed);
    next_.text += found.released;
    if (found.match < 0) return;
    const std::string& stop = request_.stop[static_cast<size_t>(found.match)];
    if (request_.include_stop_str_in_output) next_.text += stop;
    next_.finish = FinishReason::kStop;
    next_.stop_reason = stop;
  }

  void TakeEnd(const TokenEvent& event) {
    if (Result<std::string> rest = decoded_.Finish(); rest.ok()) TakeText(*rest);
    if (next_.finish) return;  // the rest completed a stop string
    next_.text += matcher_.Flush();
    next_.finish = event.finish;
    next_.status = event.status;
  }

  Engine& engine_;
  const TextRequest request_;
  const std::vector<int32_t> prompt_;
  const std::shared_ptr<EventQueue> events_ = std::make_shared<EventQueue>();
  DecodeStream decoded_;
  StopMatcher matcher_;
  Usage usage_;
  TextDelta next_;  // what has come since the last delta went out
  bool echoed_ = false;
  bool ended_ = false;
};

}  // namespace

SamplingParams DefaultSampling(const Variant& variant) {
  SamplingParams params;
  params.temperature = variant.defaults.temperature.value_or(params.temperature);
  params.top_p = variant.defaults.top_p.value_or(params.top_p);
  const int64_t top_k = variant.defaults.top_k.value_or(params.top_k);
  params.top_k = static_cast<int32_t>(std::clamp<int64_t>(top_k, -1, INT32_MAX));
  return params;
}

size_t ContextLength(const Engine& engine, const Variant& variant) {
  return std::min(engine.options().max_model_len, variant.max_model_len);
}

Result<std::unique_ptr<TextStream>> StartText(Engine& engine, TextRequest request, std::function<void()> wake) {
  DF_ASSIGN_OR_RETURN(StopMatcher matcher, StopMatcher::Create(request.stop));
  DF_ASSIGN_OR_RETURN(std::vector<int32_t> prompt, PromptTokens(request, ContextLength(engine, *request.variant)));
  request.prompt.emplace<std::string>();  // these are not needed any more, and possibly large
  request.chat_template_kwargs = Json::object();
  auto stream = std::make_unique<EngineTextStream>(engine, std::move(request), std::move(matcher), std::move(prompt));
  DF_RETURN_IF_ERROR(stream->Submit(std::move(wake)));
  return std::unique_ptr<TextStream>(std::move(stream));
}

}  // namespace df
