// What a client of the engine asks for and what it is told: tokens in, token events out.
#ifndef DELTAFOLD_ENGINE_REQUEST_H_
#define DELTAFOLD_ENGINE_REQUEST_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "kernels/logprobs.h"
#include "store/generation.h"

namespace df {

struct SamplingParams {
  std::optional<size_t> max_tokens;  // absent: up to the end of the context; 0: the prompt is computed, nothing drawn
  size_t min_tokens = 0;             // until then no token that ends the sequence is drawn
  double temperature = 1.0;          // 0 = greedy
  double top_p = 1.0;                // (0, 1]
  int32_t top_k = 0;                 // 0 or -1 = off
  std::optional<uint64_t> seed;      // given: the answer depends on the request alone; absent: the engine draws one
  std::vector<int32_t>
      stop_ids;  // end the sequence, as eos_ids do; the stop token itself is reported and counted but is no text
  bool ignore_eos = false;
  // Given: tokens come with their log-probability and that of so many of the likeliest ones. Of the logits as the model
  // gives them, before temperature and min_tokens.
  std::optional<size_t> logprobs;
  std::optional<size_t> prompt_logprobs;  // the same for the tokens of the prompt behind its first
};

enum class FinishReason { kStop, kLength, kCancelled, kError };
std::string_view FinishReasonName(FinishReason reason);  // "stop", "length", "abort", "error"

// One token; or (finish set) the end of the sequence, `token` -1 in an end without token; or what is known of the
// prompt: n_prompt > 0, no token and no end.
struct TokenEvent {
  int32_t token = -1;
  size_t n_prompt = 0;  // log-probabilities of the next so many tokens of the prompt, from its second on
  // [max(1, n_prompt)][1 + likeliest], a row for a token: itself, then the likeliest ones in order. Empty: not asked.
  std::vector<kernels::TokenLogprob> logprobs;
  std::optional<FinishReason> finish;
  Status status;         // why, for kError and kCancelled
  int64_t time_us = 0;   // SteadyClock
  int64_t queue_us = 0;  // from Submit to the first step with this request, or to an end before it
};

// The queue from the engine thread to the client of one request; after its end it takes nothing more. Thread-safe.
// Bounded by max_tokens + 1 small events, and by what was asked for of the prompt.
class EventQueue {
 public:
  EventQueue();
  // Called by the client before submitting: `wake` runs on the engine thread after each step with news. It must neither
  // block nor call the queue (it posts to an executor). After SetWaker({}) returns it does not run any more.
  void SetWaker(std::function<void()> wake);
  // Client side: everything that arrived, in order; empty when nothing did.
  std::vector<TokenEvent> TakeAll();
  // Client side: waits for at least one event.
  std::vector<TokenEvent> TakeAllBlocking();
  // Engine side; neither throws. False when there was no memory for the event: the client is told of an end for that
  // reason instead, and of nothing more.
  bool Push(TokenEvent event) noexcept;
  // The same end, unless the client was told of one.
  void EndWithoutMemory() noexcept;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// That a request which was accepted ends: whoever lets go of it before its client was told of an end, wherever memory
// was missing on the way, tells him so. Move-only.
class EndPromise {
 public:
  EndPromise() = default;
  explicit EndPromise(std::shared_ptr<EventQueue> events) : events_(std::move(events)) {}
  EndPromise(EndPromise&&) noexcept = default;
  EndPromise& operator=(EndPromise&& other) noexcept {
    const EndPromise former(std::exchange(events_, std::move(other.events_)));
    return *this;
  }
  ~EndPromise() {
    if (events_ != nullptr) events_->EndWithoutMemory();
  }

 private:
  std::shared_ptr<EventQueue> events_;
};

struct GenerationRequest {
  std::string id;               // unique; for logs
  std::vector<int32_t> prompt;  // [n] >= 1 token
  GenerationRef variant;        // null = base; kept until the end
  std::string variant_name;     // metrics label; "" = base
  std::string cache_salt;       // cached blocks are shared among requests of one salt only; "" = a salt like others
  SamplingParams params;
  std::vector<int32_t> eos_ids;        // of the variant (config and generation config)
  std::shared_ptr<EventQueue> events;  // never null
  std::optional<int64_t> timeout_ms;   // from Submit on; then kCancelled with kDeadlineExceeded
};

struct RequestLimits {
  size_t context_tokens = 0;  // prompt and answer together
  size_t vocab = 0;           // of the variant
  size_t max_logprobs = 0;    // likeliest tokens beside each
};

// Whether the engine can take the request: kInvalidArgument naming the field, with the numbers.
Status CheckRequest(const GenerationRequest& request, RequestLimits limits);

// The tokens that end the request's sequence: ascending, each once, all of the vocabulary.
std::vector<int32_t> StopTokens(const GenerationRequest& request, size_t vocab);

// Whether such a refusal says that the prompt does not fit the context (OpenAI's context_length_exceeded).
bool IsContextLengthExceeded(const Status& status);
// The refusal that IsContextLengthExceeded recognises; `prompt_size` with its unit: "4097 tokens".
Status ContextLengthExceeded(const std::string& prompt_size, size_t context_tokens);

}  // namespace df

#endif  // DELTAFOLD_ENGINE_REQUEST_H_
