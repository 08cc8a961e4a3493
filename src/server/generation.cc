#include "server/generation.h"

#include <algorithm>

namespace df::server {
namespace {

ApiError DoesNotFit(std::string message, std::string param) {
  return {.message = std::move(message), .param = std::move(param), .code = "context_length_exceeded"};
}

ApiError Refusal(const Status& status, const std::string& param) {
  if (IsContextLengthExceeded(status)) return DoesNotFit(status.message(), param);
  return FromStatus(status, param);
}

ApiError TooManyTokensAsked(size_t context_length, size_t n_prompt, size_t max_tokens) {
  return DoesNotFit("This model's maximum context length is " + std::to_string(context_length) + " tokens, but " +
                        std::to_string(n_prompt) + " in the prompt and " + std::to_string(max_tokens) +
                        " for the answer were requested; reduce one of them",
                    "max_tokens");
}

// What is told of prompts is held until it is written: bounded for all prompts of a request together.
std::optional<ApiError> CheckEchoedLogprobs(const StartPlan& plan) {
  if (!plan.fields.logprobs) return std::nullopt;
  size_t n_tokens = 0;
  for (const TextRequest& request : plan.requests) {
    if (request.echo) n_tokens += std::get<std::vector<int32_t>>(request.prompt).size();
  }
  const size_t n_each = 1 + static_cast<size_t>(*plan.fields.logprobs);
  if (n_tokens <= kMaxEchoedLogprobs / n_each) return std::nullopt;
  return InvalidField(plan.logprobs_param, "smaller, or fewer tokens be echoed: " + std::to_string(n_tokens) +
                                               " of them with " + std::to_string(n_each) +
                                               " log-probabilities each are more than the " +
                                               std::to_string(kMaxEchoedLogprobs) + " that one request may have");
}

// Turns the prompts into tokens, and refuses those that leave no room for the answer.
std::optional<ApiError> TokeniseAll(const TextService& service, const Variant& variant, StartPlan& plan) {
  const size_t context_length = service.ContextLength(variant);
  const auto max_tokens = static_cast<size_t>(plan.fields.max_tokens.value_or(1));
  // Known without the prompts, which may be long: each has a token at least.
  if (max_tokens >= context_length) return TooManyTokensAsked(context_length, 1, max_tokens);
  for (TextRequest& request : plan.requests) {
    Result<std::vector<int32_t>> prompt = service.PromptTokens(request);
    if (!prompt.ok()) return Refusal(prompt.status(), plan.param);
    if (prompt->size() + std::min<size_t>(max_tokens, 1) > context_length) {
      return Refusal(ContextLengthExceeded(std::to_string(prompt->size()) + " tokens", context_length), plan.param);
    }
    if (prompt->size() + max_tokens > context_length) {
      return TooManyTokensAsked(context_length, prompt->size(), max_tokens);
    }
    request.prompt = std::move(*prompt);  // frees the text
  }
  return CheckEchoedLogprobs(plan);
}

void FillIn(const GenerationFields& fields, const SamplingParams& defaults, TextRequest& request) {
  request.params = ToSamplingParams(fields, defaults);
  if (request.echo) request.params.prompt_logprobs = request.params.logprobs;
  request.stop = fields.stop;
  request.include_stop_str_in_output = fields.include_stop_str_in_output;
  request.cache_salt = fields.cache_salt;
  request.skip_special_tokens = fields.skip_special_tokens;
}

}  // namespace

Prepared StartStreams(TextService& service, StartPlan plan, const PrepareContext& context) {
  const std::shared_ptr<const Variant> variant = service.store().FindOrNull(plan.fields.model);
  if (variant == nullptr) return ModelNotFound(plan.fields.model);
  if (plan.fields.logprobs && static_cast<size_t>(*plan.fields.logprobs) > service.MaxLogprobs()) {
    return InvalidField(plan.logprobs_param, "at most " + std::to_string(service.MaxLogprobs()));
  }
  for (TextRequest& request : plan.requests) request.variant = variant;
  if (auto error = TokeniseAll(service, *variant, plan)) return *error;

  AnswerHead head = {.id = std::string(plan.words.id_prefix) + context.unique_id,
                     .created_unix = context.created_unix,
                     .model = plan.fields.model,
                     .system_fingerprint = service.SystemFingerprint(*variant),
                     .include_usage = plan.fields.include_usage};
  std::vector<std::unique_ptr<TextStream>> streams;
  for (TextRequest& request : plan.requests) {
    request.id = head.id + "-" + std::to_string(streams.size());
    FillIn(plan.fields, service.DefaultSampling(*variant), request);
    Result<std::unique_ptr<TextStream>> started = service.Start(std::move(request), context.wake);
    if (!started.ok()) return Refusal(started.status(), plan.param);
    streams.push_back(std::move(*started));
  }
  return PreparedGeneration{.format = AnswerFormat(plan.words, std::move(head)),
                            .streams = std::move(streams),
                            .variant_name = variant->name,
                            .stream = plan.fields.stream,
                            .include_usage = plan.fields.include_usage};
}

}  // namespace df::server
