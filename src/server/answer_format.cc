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
  choice["logprobs"] = nullptr;
  choice["finish_reason"] = nullptr;
  return choice;
}

Json Ended(Json choice, const ChoiceEnd& end) {
  choice["finish_reason"] = end.finish == FinishReason::kLength ? "length" : "stop";
  choice["stop_reason"] = end.stop_reason ? Json(*end.stop_reason) : Json(nullptr);
  return choice;
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

std::string AnswerFormat::ChoiceEvent(Json choice) const {
  Json chunk = Head(words_->streamed_object);
  chunk["choices"] = Json::array();
  chunk["choices"].push_back(std::move(choice));
  if (head_.include_usage) chunk["usage"] = nullptr;
  return SseEvent(DumpJson(chunk));
}

std::string AnswerFormat::StartEvents(size_t n_choices) const {
  std::string events;
  if (!words_->starts_with_event) return events;
  for (size_t i = 0; i < n_choices; ++i) {
    events += ChoiceEvent(Choice(i, words_->streamed_part, words_->part(Part::kStart, "")));
  }
  return events;
}

std::string AnswerFormat::TextEvent(size_t choice, std::string_view text) const {
  return ChoiceEvent(Choice(choice, words_->streamed_part, words_->part(Part::kText, text)));
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
  Json& list = body["choices"] = Json::array();
  for (size_t i = 0; i < choices.size(); ++i) {
    Json choice = Choice(i, words_->whole_part, words_->part(Part::kWhole, choices[i].text));
    list.push_back(Ended(std::move(choice), choices[i].end));
  }
  body["usage"] = UsageJson(usage);
  return DumpJson(body);
}

}  // namespace df::server
