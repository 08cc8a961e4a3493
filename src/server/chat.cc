// POST /v1/chat/completions
#include "server/generation.h"

namespace df::server {
namespace {

Json MessagePart(Part part, std::string_view text) {
  Json message = Json::object();
  if (part == Part::kStart || part == Part::kWhole) message["role"] = "assistant";
  if (part != Part::kEnd) message["content"] = text;
  return message;
}

constexpr RouteWords kChatWords = {.id_prefix = "chatcmpl-",
                                   .streamed_object = "chat.completion.chunk",
                                   .whole_object = "chat.completion",
                                   .streamed_part = "delta",
                                   .whole_part = "message",
                                   .starts_with_event = true,
                                   .logprob_style = LogprobStyle::kChat,
                                   .part = MessagePart};

}  // namespace

Prepared PrepareChat(TextService& service, std::string body, const PrepareContext& context) {
  ChatRequest request;
  if (auto error = ParseChatRequest(std::move(body), request)) return *error;
  StartPlan plan{.words = kChatWords,
                 .fields = std::move(request.fields),
                 .requests = {},
                 .param = "messages",
                 .logprobs_param = "top_logprobs"};
  TextRequest& text = plan.requests.emplace_back();
  text.prompt = std::move(request.messages);
  text.chat_template_kwargs = std::move(request.chat_template_kwargs);
  text.add_generation_prompt = request.add_generation_prompt;
  return StartStreams(service, std::move(plan), context);
}

}  // namespace df::server
