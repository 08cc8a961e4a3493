// The JSON of answers, streamed and whole.
#ifndef DELTAFOLD_SERVER_ANSWER_FORMAT_H_
#define DELTAFOLD_SERVER_ANSWER_FORMAT_H_

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json_fwd.h"
#include "engine/session.h"
#include "server/logprobs_json.h"

namespace df::server {

struct ChoiceEnd {
  FinishReason finish = FinishReason::kStop;
  std::optional<std::string> stop_reason;
};

// What a choice says at one place of an answer.
enum class Part {
  kStart,  // streamed, before any text
  kText,   // streamed
  kEnd,    // streamed, behind the text
  kWhole,  // all of it, not streamed
};

// How the routes differ in what they write.
struct RouteWords {
  std::string_view id_prefix;                      // of the answer's id
  std::string_view streamed_object, whole_object;  // values of "object"
  std::string_view streamed_part, whole_part;      // the member of a choice that holds its part
  bool starts_with_event = false;                  // whether kStart is sent
  LogprobStyle logprob_style = LogprobStyle::kCompletion;
  Json (*part)(Part part, std::string_view text) = nullptr;
};

// What every event of an answer repeats.
struct AnswerHead {
  std::string id;
  int64_t created_unix = 0;
  std::string model;  // as the client wrote it
  std::string system_fingerprint;
  bool include_usage = false;  // "usage": null in all events but the last
};

// How one answer is written. Immutable: pure functions of the request and their arguments.
class AnswerFormat {
 public:
  AnswerFormat(const RouteWords& words, AnswerHead head) : words_(&words), head_(std::move(head)) {}

  LogprobStyle logprob_style() const { return words_->logprob_style; }

  // Server-sent events, each complete.
  std::string StartEvents(size_t n_choices) const;  // before any text
  // `logprobs`: the member's JSON, "" = null.
  std::string TextEvent(size_t choice, std::string_view text, std::string_view logprobs = "") const;
  std::string EndEvent(size_t choice, const ChoiceEnd& end) const;
  std::string UsageEvent(const Usage& usage) const;

  struct WholeChoice {
    std::string text;
    ChoiceEnd end;
    std::string logprobs;  // as in TextEvent
  };
  std::string WholeBody(const std::vector<WholeChoice>& choices, const Usage& usage) const;

 private:
  Json Head(std::string_view object) const;
  std::string ChoiceEvent(const Json& choice, std::string_view logprobs = "") const;

  const RouteWords* words_;  // static
  AnswerHead head_;
};

}  // namespace df::server

#endif  // DELTAFOLD_SERVER_ANSWER_FORMAT_H_
