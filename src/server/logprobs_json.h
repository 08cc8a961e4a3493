// The "logprobs" of a choice, written as text while its tokens come: an answer may hold a million of them, which are
// neither kept as a tree nor turned into text all at once.
#ifndef DELTAFOLD_SERVER_LOGPROBS_JSON_H_
#define DELTAFOLD_SERVER_LOGPROBS_JSON_H_

#include <cstddef>
#include <string>

#include "engine/session.h"

namespace df::server {

enum class LogprobStyle {
  kCompletion,  // {tokens, token_logprobs, top_logprobs, text_offset}: a list each, an entry a token
  kChat,        // {content: [{token, logprob, bytes, top_logprobs}], refusal: null}
};

// A token is named by its text or, where that is a part of a character, as OpenAI does: "bytes:\xe2\x82". Of -infinity,
// which JSON has no word for, becomes -9999, as in vLLM. With kCompletion the top_logprobs of a token hold the token
// itself too; of several with one text the likeliest stays.
class LogprobsJson {
 public:
  explicit LogprobsJson(LogprobStyle style) : style_(style) {}

  void Add(const LikelyTokens& tokens);
  bool empty() const { return entries_.empty(); }
  // The member's value for what was added since the last call; "" when nothing was. text_offset goes on counting.
  std::string Take();

 private:
  void AddToCompletion(const LikelyTokens& tokens);
  void AddToChat(const LikelyTokens& tokens);

  LogprobStyle style_;
  std::string entries_;                                       // `content`, or `tokens`
  std::string token_logprobs_, top_logprobs_, text_offsets_;  // kCompletion
  size_t n_characters_ = 0;                                   // of all tokens added
};

}  // namespace df::server

#endif  // DELTAFOLD_SERVER_LOGPROBS_JSON_H_
