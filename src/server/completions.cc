// POST /v1/completions
#include "server/generation.h"
#include "server/sse.h"

namespace df::server {
namespace {

Json Choice(size_t index, std::string_view text) {
  Json choice = Json::object();
  choice["index"] = index;
  choice["text"] = text;
  choice["logprobs"] = nullptr;
  choice["finish_reason"] = nullptr;
  return choice;
}

Json EndedChoice(size_t index, std::string_view text, const ChoiceEnd& end) {
  Json choice = Choice(index, text);
  choice["finish_reason"] = FinishText(end.finish);
  choice["stop_reason"] = StopReasonJson(end);
  return choice;
}

class CompletionFormat final : public AnswerFormat {
 public:
  CompletionFormat(AnswerHead head, bool include_usage) : head_(std::move(head)), include_usage_(include_usage) {}

  std::string StartEvents(size_t) const override { return ""; }
  std::string TextEvent(size_t choice, std::string_view text) const override { return Event(Choice(choice, text)); }
  std::string EndEvent(size_t choice, const ChoiceEnd& end) const override {
    return Event(EndedChoice(choice, "", end));
  }
  std::string UsageEvent(const Usage& usage) const override {
    Json chunk = HeadJson(head_);
    chunk["choices"] = Json::array();
    chunk["usage"] = UsageJson(usage);
    return SseEvent(DumpJson(chunk));
  }
  std::string WholeBody(const std::vector<WholeChoice>& choices, const Usage& usage) const override {
    Json body = HeadJson(head_);
    Json& list = body["choices"] = Json::array();
    for (size_t i = 0; i < choices.size(); ++i) list.push_back(EndedChoice(i, choices[i].text, choices[i].end));
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

TextRequest ToTextRequest(std::variant<std::string, std::vector<int32_t>> prompt, bool add_special_tokens) {
  TextRequest text;
  text.add_special_tokens = add_special_tokens;
  if (auto* words = std::get_if<std::string>(&prompt)) {
    text.prompt = std::move(*words);
  } else {
    text.prompt = std::move(std::get<std::vector<int32_t>>(prompt));
  }
  return text;
}

}  // namespace

Prepared PrepareCompletion(TextService& service, std::string_view body, const PrepareContext& context) {
  Json root;
  if (auto error = ParseBody(body, root)) return *error;
  CompletionRequest request;
  if (auto error = ReadCompletionRequest(root, request)) return *error;
  const std::shared_ptr<const Variant> variant = service.FindOrNull(request.fields.model);
  if (variant == nullptr) return ModelNotFound(request.fields.model);

  AnswerHead head = {.id = "cmpl-" + context.unique_id,
                     .object = "text_completion",
                     .created_unix = context.created_unix,
                     .model = request.fields.model,
                     .system_fingerprint = service.SystemFingerprint(*variant)};
  StartPlan plan{.fields = std::move(request.fields), .requests = {}, .param = "prompt"};
  for (size_t i = 0; i < request.prompts.size(); ++i) {
    plan.requests.push_back(ToTextRequest(std::move(request.prompts[i]), request.add_special_tokens));
    plan.requests.back().id = head.id + "-" + std::to_string(i);
    plan.requests.back().variant = variant;
  }
  Prepared prepared = StartStreams(service, std::move(plan), context);
  if (auto* generation = std::get_if<PreparedGeneration>(&prepared)) {
    generation->format = std::make_unique<CompletionFormat>(std::move(head), generation->include_usage);
  }
  return prepared;
}

}  // namespace df::server
