#include "server/generation.h"

#include <algorithm>

namespace df::server {
namespace {

ApiError ContextLengthExceeded(std::string message, std::string param) {
  return {.message = std::move(message), .param = std::move(param), .code = "context_length_exceeded"};
}

ApiError TooManyTokensAsked(size_t context_length, size_t n_prompt, int64_t max_tokens) {
  return ContextLengthExceeded("This model's maximum context length is " + std::to_string(context_length) +
                                   " tokens, but " + std::to_string(n_prompt) + " in the prompt and " +
                                   std::to_string(max_tokens) + " for the answer were requested; reduce one of them",
                               "max_tokens");
}

}  // namespace

Json HeadJson(const AnswerHead& head) {
  Json json = Json::object();
  json["id"] = head.id;
  json["object"] = head.object;
  json["created"] = head.created_unix;
  json["model"] = head.model;
  json["system_fingerprint"] = head.system_fingerprint;
  return json;
}

Json UsageJson(const Usage& usage) {
  Json json = Json::object();
  json["prompt_tokens"] = usage.prompt_tokens;
  json["completion_tokens"] = usage.completion_tokens;
  json["total_tokens"] = usage.prompt_tokens + usage.completion_tokens;
  return json;
}

Json StopReasonJson(const ChoiceEnd& end) { return end.stop_reason ? Json(*end.stop_reason) : Json(nullptr); }

std::string_view FinishText(FinishReason finish) { return finish == FinishReason::kLength ? "length" : "stop"; }

Prepared StartStreams(TextService& service, StartPlan plan, const PrepareContext& context) {
  PreparedGeneration prepared;
  prepared.stream = plan.fields.stream;
  prepared.include_usage = plan.fields.include_usage;
  for (TextRequest& request : plan.requests) {
    const std::shared_ptr<const Variant> variant = request.variant;
    prepared.variant_name = variant->name;
    request.params = ToSamplingParams(plan.fields, service.DefaultSampling(*variant));
    request.stop = plan.fields.stop;
    request.include_stop_str_in_output = plan.fields.include_stop_str_in_output;
    request.skip_special_tokens = plan.fields.skip_special_tokens;
    const size_t context_length = service.ContextLength(*variant);
    const int64_t max_tokens = plan.fields.max_tokens.value_or(0);
    if (static_cast<size_t>(max_tokens) >= context_length) return TooManyTokensAsked(context_length, 1, max_tokens);
    Result<std::unique_ptr<TextStream>> started = service.Start(std::move(request), context.wake);
    if (!started.ok()) {
      if (service.IsContextLengthExceeded(started.status())) {
        return ContextLengthExceeded(started.status().message(), plan.param);
      }
      return FromStatus(started.status(), plan.param);
    }
    const size_t n_prompt = (*started)->prompt().size();
    if (n_prompt + static_cast<size_t>(max_tokens) > context_length) {
      return TooManyTokensAsked(context_length, n_prompt, max_tokens);
    }
    prepared.streams.push_back(std::move(*started));
  }
  return prepared;
}

}  // namespace df::server
