#include "server/answer_format.h"

#include "base/json.h"
#include "server/sse.h"

namespace df::server {
namespace {

Json UsageJson(const Usage& usage) {
  Json json = Json::object();
  json["prompt_tokens"] = usage.prompt_tokens;
  json["completion_tokens"] = usage.completion_tokens;
  json["total_tokens"] = usage.prompt_tokens + usage.completion_tokens;
  return json;
}

Json Choice(size_t index, std::string_view part_name, Json part) {
  Json choice = Json::object();
  choice["index"] = index;
  choice[part_name] = std::move(part);
  choice["finish_reason"] = nullptr;
  return choice;
}

Json Ended(Json choice, const ChoiceEnd& end) {
  choice["finish_reason"] = end.finish == FinishReason::kLength ? "length" : "stop";
  choice["stop_reason"] = end.stop_reason ? Json(*end.stop_reason) : Json(nullptr);
  return choice;
}

// An object with one member more, whose value is JSON already: logprobs may be megabytes, no tree is made of them.
std::string WithMember(const Json& object, std::string_view name, std::string_view json) {
  std::string text = DumpJson(object);
  text.back() = ',';
  text += '"';
  text += name;
  text += "\":";
  text += json.empty() ? "null" : json;
  text += '}';
  return text;
}

}  // namespace

Json AnswerFormat::Head(std::string_view object) const {
  Json json = Json::object();
  json["id"] = head_.id;
  json["object"] = object;
  json["created"] = head_.created_unix;
  json["model"] = head_.model;
  json["system_fingerprint"] = head_.system_fingerprint;
  return json;
}

std::string AnswerFormat::ChoiceEvent(const Json& choice, std::string_view logprobs) const {
  Json chunk = Head(words_->streamed_object);
  if (head_.include_usage) chunk["usage"] = nullptr;
  return SseEvent(WithMember(chunk, "choices", "[" + WithMember(choice, "logprobs", logprobs) + "]"));
}

std::string AnswerFormat::StartEvents(size_t n_choices) const {
  std::string events;
  if (!words_->starts_with_event) return events;
  for (size_t i = 0; i < n_choices; ++i) {
    events += ChoiceEvent(Choice(i, words_->streamed_part, words_->part(Part::kStart, "")));
  }
  return events;
}

std::string AnswerFormat::TextEvent(size_t choice, std::string_view text, std::string_view logprobs) const {
  return ChoiceEvent(Choice(choice, words_->streamed_part, words_->part(Part::kText, text)), logprobs);
}

std::string AnswerFormat::EndEvent(size_t choice, const ChoiceEnd& end) const {
  return ChoiceEvent(Ended(Choice(choice, words_->streamed_part, words_->part(Part::kEnd, "")), end));
}

std::string AnswerFormat::UsageEvent(const Usage& usage) const {
  Json chunk = Head(words_->streamed_object);
  chunk["choices"] = Json::array();
  chunk["usage"] = UsageJson(usage);
  return SseEvent(DumpJson(chunk));
}

std::string AnswerFormat::WholeBody(const std::vector<WholeChoice>& choices, const Usage& usage) const {
  Json body = Head(words_->whole_object);
  body["usage"] = UsageJson(usage);
  std::string list = "[";
  for (size_t i = 0; i < choices.size(); ++i) {
    Json choice = Choice(i, words_->whole_part, words_->part(Part::kWhole, choices[i].text));
    if (i > 0) list += ',';
    list += WithMember(Ended(std::move(choice), choices[i].end), "logprobs", choices[i].logprobs);
  }
  list += ']';
  return WithMember(body, "choices", list);
}

}  // namespace df::server
