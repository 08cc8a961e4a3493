// One generation on its way to a client: what has arrived of each choice, its times, and the events not written yet.
#ifndef DELTAFOLD_SERVER_RUNNING_ANSWER_H_
#define DELTAFOLD_SERVER_RUNNING_ANSWER_H_

#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "metrics/metrics.h"
#include "server/generation.h"

namespace df::server {

// Knows no sockets. I/O thread only. Destroyed before all choices have ended: those left are cancelled and counted as
// "abort".
class RunningAnswer {
 public:
  struct Times {
    int64_t arrival_us = 0;  // of the request
  };
  RunningAnswer(PreparedGeneration prepared, ServerMetrics& metrics, const Clock& clock, Times times);
  ~RunningAnswer();
  RunningAnswer(const RunningAnswer&) = delete;
  RunningAnswer& operator=(const RunningAnswer&) = delete;

  // Takes what the streams have. Returns its server-sent events ("" when nothing came or this is no streamed answer).
  std::string Advance();

  bool ended() const { return n_ended_ == choices_.size(); }
  // The first failure of a choice: the whole answer has failed then.
  const std::optional<Status>& failure() const { return failure_; }
  bool any_text() const { return any_text_; }

  const PreparedGeneration& prepared() const { return prepared_; }
  Usage TotalUsage() const;
  std::string WholeBody();  // once
  // Of the first choice, for the log; "abort" before its end.
  std::string_view finish_name() const;

 private:
  struct Choice {
    explicit Choice(LogprobStyle style) : logprobs(style) {}

    std::string text;       // of an answer that is not streamed
    LogprobsJson logprobs;  // what is not written yet
    std::optional<ChoiceEnd> end;
    uint64_t n_tokens = 0;
    int64_t first_token_us = 0, last_token_us = 0;
  };

  std::string AdvanceChoice(size_t index, const std::vector<TextDelta>& deltas);
  void CountTokens(Choice& choice, uint64_t n_tokens);
  void EndChoice(size_t index, FinishReason finish, std::optional<std::string> stop_reason);

  PreparedGeneration prepared_;
  ServerMetrics& metrics_;
  const Clock& clock_;
  const Times times_;
  std::vector<Choice> choices_;
  size_t n_ended_ = 0;
  bool any_text_ = false;
  std::optional<Status> failure_;
  InterTokenGaps gaps_;
};

}  // namespace df::server

#endif  // DELTAFOLD_SERVER_RUNNING_ANSWER_H_
