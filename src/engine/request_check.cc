#include <algorithm>
#include <cmath>
#include <string>

#include "engine/request.h"

namespace df {
namespace {

constexpr std::string_view kContextLengthPrefix = "context length exceeded: ";

Status CheckTokens(const std::vector<int32_t>& prompt, size_t vocab) {
  for (size_t i = 0; i < prompt.size(); ++i) {
    if (prompt[i] < 0 || static_cast<size_t>(prompt[i]) >= vocab) {
      return InvalidArgument("prompt token " + std::to_string(i) + " is " + std::to_string(prompt[i]) +
                             ", not in this model's vocabulary of " + std::to_string(vocab));
    }
  }
  return Status::Ok();
}

Status CheckLogprobs(const char* name, const std::optional<size_t>& wanted, size_t max) {
  if (!wanted || *wanted <= max) return Status::Ok();
  return InvalidArgument(std::string(name) + " must be at most " + std::to_string(max) + ", got " +
                         std::to_string(*wanted));
}

Status CheckParams(const SamplingParams& params) {
  if (params.max_tokens && params.min_tokens > *params.max_tokens) {
    return InvalidArgument("min_tokens " + std::to_string(params.min_tokens) + " is more than max_tokens " +
                           std::to_string(*params.max_tokens));
  }
  if (!std::isfinite(params.temperature) || params.temperature < 0.0) {
    return InvalidArgument("temperature must be a finite number of at least 0, got " +
                           std::to_string(params.temperature));
  }
  if (!(params.top_p > 0.0 && params.top_p <= 1.0)) {
    return InvalidArgument("top_p must be in (0, 1], got " + std::to_string(params.top_p));
  }
  if (params.top_k < -1) {
    return InvalidArgument("top_k must be -1 or 0 (off) or positive, got " + std::to_string(params.top_k));
  }
  return Status::Ok();
}

}  // namespace

Status ContextLengthExceeded(const std::string& prompt_size, size_t context_tokens) {
  return InvalidArgument(std::string(kContextLengthPrefix) + "this model's maximum context length is " +
                         std::to_string(context_tokens) + " tokens, and the prompt has " + prompt_size +
                         ", which leaves no room for an answer; shorten the prompt");
}

bool IsContextLengthExceeded(const Status& status) {
  return status.code() == StatusCode::kInvalidArgument && status.message().starts_with(kContextLengthPrefix);
}

Status CheckRequest(const GenerationRequest& request, RequestLimits limits) {
  if (request.prompt.empty()) return InvalidArgument("the prompt is empty: at least one token is needed");
  const size_t n_answer = request.params.max_tokens.value_or(1) == 0 ? 0 : 1;
  if (request.prompt.size() + n_answer > limits.context_tokens) {
    return ContextLengthExceeded(std::to_string(request.prompt.size()) + " tokens", limits.context_tokens);
  }
  DF_RETURN_IF_ERROR(CheckTokens(request.prompt, limits.vocab));
  DF_RETURN_IF_ERROR(CheckParams(request.params));
  DF_RETURN_IF_ERROR(CheckLogprobs("logprobs", request.params.logprobs, limits.max_logprobs));
  DF_RETURN_IF_ERROR(CheckLogprobs("prompt_logprobs", request.params.prompt_logprobs, limits.max_logprobs));
  if (request.params.min_tokens > 0 && StopTokens(request, limits.vocab).size() == limits.vocab) {
    return InvalidArgument("min_tokens: every token of the vocabulary is a stop token, so that none is left to draw");
  }
  return Status::Ok();
}

std::vector<int32_t> StopTokens(const GenerationRequest& request, size_t vocab) {
  std::vector<int32_t> tokens = request.params.stop_ids;
  if (!request.params.ignore_eos) tokens.insert(tokens.end(), request.eos_ids.begin(), request.eos_ids.end());
  std::erase_if(tokens, [&](int32_t token) { return token < 0 || static_cast<size_t>(token) >= vocab; });
  std::sort(tokens.begin(), tokens.end());
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  return tokens;
}

}  // namespace df
