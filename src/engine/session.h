// Text on top of the engine: template -> tokens -> stops -> text deltas. One for server, run and chat: stop strings,
// templates and detokenising live here alone.
#ifndef DELTAFOLD_ENGINE_SESSION_H_
#define DELTAFOLD_ENGINE_SESSION_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/json.h"
#include "engine/engine.h"
#include "store/registry.h"

namespace df {

struct TextRequest {
  std::string id;
  std::shared_ptr<const Variant> variant;  // from the registry; the base is one too
  // Exactly one of: chat messages, text, token ids.
  std::variant<Json, std::string, std::vector<int32_t>> prompt;
  Json chat_template_kwargs = Json::object();  // chat only
  bool add_generation_prompt = true;           // chat only
  bool add_special_tokens = true;              // text only: BOS where the tokenizer has one
  bool parse_special_tokens = true;            // text only: the text is the whole model input, so control tokens it
                                               // spells out are meant; chat content never becomes one
  SamplingParams params;
  bool echo = false;              // the prompt's text before the answer's, its log-probabilities before those
  std::string prompt_text;        // for echo: as the client wrote it; "" = what the tokens spell
  std::vector<std::string> stop;  // stop strings
  bool include_stop_str_in_output = false;
  bool skip_special_tokens = true;
  std::string cache_salt;             // cached prompt blocks are shared among requests of one salt only
  std::optional<int64_t> timeout_ms;  // as in GenerationRequest
};

// Sampling as the variant's generation_config.json wants it: the values for whatever a request leaves open.
SamplingParams DefaultSampling(const Variant& variant);

// Tokens that prompt and answer of this variant may have together on this engine.
size_t ContextLength(const Engine& engine, const Variant& variant);

// Bounds of `stop`: together at most this many bytes, so that a queue of requests cannot hold much memory.
inline constexpr size_t kMaxStopBytes = size_t{64} << 10;

// A token and what the model gave it, for those who asked for log-probabilities.
struct TokenLikelihood {
  std::string bytes = {};             // of the token alone (Tokenizer::TokenBytes): maybe a part of a character
  std::optional<float> logprob = {};  // none for the first token of a prompt
};
struct LikelyTokens {
  TokenLikelihood token = {};
  std::vector<TokenLikelihood> top = {};  // as many of the likeliest ones as were asked for, in order
};

struct TextDelta {
  std::string text;                        // complete UTF-8; empty only in the last one, and in those of a prompt
  std::vector<int32_t> tokens;             // tokens behind it (held-back text comes later)
  std::vector<LikelyTokens> logprobs;      // where asked for: of the prompt's tokens (echo), or of `tokens`
  std::optional<FinishReason> finish;      // set in the last one
  std::optional<std::string> stop_reason;  // the stop string that matched
  Status status;                           // for kError / kCancelled
};

struct Usage {
  size_t prompt_tokens = 0;
  size_t completion_tokens = 0;  // the stop token is counted
  int64_t queue_us = 0;          // from submission to the first step with this request; 0 before its first token
};

// One generation under way. Owned by its client, used from one thread at a time, outlived by its engine. Destroyed
// before the end: cancelled.
class TextStream {
 public:
  virtual ~TextStream() = default;
  // What arrived since the last call; empty vector = nothing yet. Text is held back only while it could still be part
  // of a stop string or of an unfinished UTF-8 character; the concatenation equals the unstreamed text.
  virtual std::vector<TextDelta> TakeAll() = 0;
  virtual std::vector<TextDelta> TakeAllBlocking() = 0;
  virtual const Usage& usage() const = 0;
  virtual const std::vector<int32_t>& prompt() const = 0;
  virtual void Cancel() = 0;
};

// Templates, tokenises, submits. `wake` as in EventQueue::SetWaker (may be empty for blocking clients). Errors are the
// client's (kInvalidArgument naming the field; IsContextLengthExceeded tells which; kFailedPrecondition: no chat
// template) or the engine's (kResourceExhausted: queue full; kUnavailable). A text that matches several stop strings
// ends before the one that is complete first; of those complete at once, before the longest.
Result<std::unique_ptr<TextStream>> StartText(Engine& engine, TextRequest request, std::function<void()> wake);

}  // namespace df

#endif  // DELTAFOLD_ENGINE_SESSION_H_
