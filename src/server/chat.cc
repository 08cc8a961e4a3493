// POST /v1/chat/completions
#include "server/generation.h"
#include "server/sse.h"

namespace df::server {
namespace {

Json Choice(size_t index, const char* part_name, Json part) {
  Json choice = Json::object();
  choice["index"] = index;
  choice[part_name] = std::move(part);
  choice["logprobs"] = nullptr;
  choice["finish_reason"] = nullptr;
  return choice;
}

Json Message(std::string_view text) {
  Json message = Json::object();
  message["role"] = "assistant";
  message["content"] = text;
  return message;
}

class ChatFormat final : public AnswerFormat {
 public:
  ChatFormat(AnswerHead head, bool include_usage) : head_(std::move(head)), include_usage_(include_usage) {}

  std::string StartEvents(size_t n_choices) const override {
    std::string events;
    for (size_t i = 0; i < n_choices; ++i) events += Event(Choice(i, "delta", Message("")));
    return events;
  }
  std::string TextEvent(size_t choice, std::string_view text) const override {
    return Event(Choice(choice, "delta", Json::object({{"content", text}})));
  }
  std::string EndEvent(size_t choice, const ChoiceEnd& end) const override {
    Json json = Choice(choice, "delta", Json::object());
    json["finish_reason"] = FinishText(end.finish);
    json["stop_reason"] = StopReasonJson(end);
    return Event(std::move(json));
  }
  std::string UsageEvent(const Usage& usage) const override {
    Json chunk = HeadJson(head_);
    chunk["choices"] = Json::array();
    chunk["usage"] = UsageJson(usage);
    return SseEvent(DumpJson(chunk));
  }
  std::string WholeBody(const std::vector<WholeChoice>& choices, const Usage& usage) const override {
    AnswerHead head = head_;
    head.object = "chat.completion";
    Json body = HeadJson(head);
    Json& list = body["choices"] = Json::array();
    for (size_t i = 0; i < choices.size(); ++i) {
      Json choice = Choice(i, "message", Message(choices[i].text));
      choice["finish_reason"] = FinishText(choices[i].end.finish);
      choice["stop_reason"] = StopReasonJson(choices[i].end);
      list.push_back(std::move(choice));
    }
    body["usage"] = UsageJson(usage);
    return DumpJson(body);
  }

 private:
  std::string Event(Json choice) const {
    Json chunk = HeadJson(head_);
    chunk["choices"] = Json::array();
    chunk["choices"].push_back(std::move(choice));
    if (include_usage_) chunk["usage"] = nullptr;
    return SseEvent(DumpJson(chunk));
  }

  AnswerHead head_;
  bool include_usage_;
};

}  // namespace

Prepared PrepareChat(TextService& service, std::string_view body, const PrepareContext& context) {
  Json root;
  if (auto error = ParseBody(body, root)) return *error;
  ChatRequest request;
  if (auto error = ReadChatRequest(root, request)) return *error;
  const std::shared_ptr<const Variant> variant = service.FindOrNull(request.fields.model);
  if (variant == nullptr) return ModelNotFound(request.fields.model);

  AnswerHead head = {.id = "chatcmpl-" + context.unique_id,
                     .object = "chat.completion.chunk",
                     .created_unix = context.created_unix,
                     .model = request.fields.model,
                     .system_fingerprint = service.SystemFingerprint(*variant)};
  TextRequest text;
  text.id = head.id;
  text.variant = variant;
  text.prompt = std::move(request.messages);
  text.chat_template_kwargs = std::move(request.chat_template_kwargs);
  text.add_generation_prompt = request.add_generation_prompt;
  StartPlan plan{.fields = std::move(request.fields), .requests = {}, .param = "messages"};
  plan.requests.push_back(std::move(text));
  Prepared prepared = StartStreams(service, std::move(plan), context);
  if (auto* generation = std::get_if<PreparedGeneration>(&prepared)) {
    generation->format = std::make_unique<ChatFormat>(std::move(head), generation->include_usage);
  }
  return prepared;
}

}  // namespace df::server
