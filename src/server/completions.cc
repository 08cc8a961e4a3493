// POST /v1/completions
#include "server/generation.h"

namespace df::server {
namespace {

Json TextPart(Part /*part*/, std::string_view text) { return text; }

constexpr RouteWords kCompletionWords = {.id_prefix = "cmpl-",
                                         .streamed_object = "text_completion",
                                         .whole_object = "text_completion",
                                         .streamed_part = "text",
                                         .whole_part = "text",
                                         .logprob_style = LogprobStyle::kCompletion,
                                         .part = TextPart};

}  // namespace

Prepared PrepareCompletion(TextService& service, std::string body, const PrepareContext& context) {
  CompletionRequest request;
  if (auto error = ParseCompletionRequest(std::move(body), request)) return *error;
  StartPlan plan{.words = kCompletionWords,
                 .fields = std::move(request.fields),
                 .requests = {},
                 .param = "prompt",
                 .logprobs_param = "logprobs"};
  for (auto& prompt : request.prompts) {
    TextRequest& text = plan.requests.emplace_back();
    text.echo = request.echo;
    if (const auto* words = std::get_if<std::string>(&prompt); words != nullptr && request.echo) {
      text.prompt_text = *words;
    }
    std::visit([&](auto& words_or_ids) { text.prompt = std::move(words_or_ids); }, prompt);
    text.add_special_tokens = request.add_special_tokens;
  }
  return StartStreams(service, std::move(plan), context);
}

}  // namespace df::server
