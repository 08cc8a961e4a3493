// A request inside the engine: what was asked, what was generated, what the KV cache holds of it.
#ifndef DELTAFOLD_ENGINE_SEQUENCE_H_
#define DELTAFOLD_ENGINE_SEQUENCE_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "engine/kv_cache.h"
#include "engine/queue_places.h"
#include "engine/request.h"
#include "kernels/linear.h"

namespace df {

inline constexpr int64_t kNoDeadline = std::numeric_limits<int64_t>::max();

// Engine thread only.
struct Sequence {
  Sequence(GenerationRequest r, KvBlocks& blocks) : request(std::move(r)), kv(blocks) {}

  EndPromise promise;  // goes last: its client hears of the end when blocks and lease are free
  GenerationRequest request;
  uint64_t seed = 0;
  uint64_t arrival = 0;              // order of acceptance
  uint64_t ticket = 0;               // order of entering the running set, kept through preemption; 0 = not yet
  size_t token_limit = 0;            // prompt and answer together: the context's end or max_tokens
  std::vector<int32_t> stop_tokens;  // each ends the sequence; of the variant's vocabulary, no token twice
  int64_t submitted_us = 0;
  int64_t deadline_us = kNoDeadline;
  int64_t admitted_us = -1;  // first time in the running set

  std::vector<int32_t> generated;
  size_t n_prompt_told = 0;  // leading rows of the prompt of which its client has what they say of the next token
  size_t n_cached = 0;       // leading tokens whose keys and values are in the cache
  KvLease kv;
  std::shared_ptr<const PrefixDomain> prefix_domain;  // null: nothing is shared with others
  // Generated tokens' keys and values differ in rounding from those that a prompt of the same tokens would have: they
  // are shared only where that is allowed anyway.
  bool shares_answer = false;
  ResidencyLease lease;      // of the variant; while in the running set, or next to enter it
  bool is_cold = false;      // preempted, and was refused its weights since
  QueuePlaces::Place place;  // in the line of its variant, until it enters the running set

  size_t n_tokens() const { return request.prompt.size() + generated.size(); }
  size_t n_pending() const { return n_tokens() - n_cached; }  // >= 1 between steps
  int32_t Token(size_t i) const {
    return i < request.prompt.size() ? request.prompt[i] : generated[i - request.prompt.size()];
  }
  KnownTokens known_tokens() const { return {request.prompt, generated}; }
  bool NeedsWeights() const { return request.variant != nullptr && lease.weights() == nullptr; }
  // Rows of the prompt whose logits its client wants: all but the last, whose next token is drawn.
  size_t n_prompt_to_tell() const { return request.params.prompt_logprobs ? request.prompt.size() - 1 : 0; }
  // Whether nothing more is to be drawn: of a request that wants no token.
  bool IsComplete() const { return n_tokens() >= token_limit; }
  // Leading blocks that may be taken from others: full ones, and one token at least is computed, for its logits. Rows
  // whose logits are still to be told are computed, whoever has their keys and values.
  size_t n_shareable_blocks() const {
    size_t n_usable = std::min(shares_answer ? n_tokens() : request.prompt.size(), n_tokens() - 1);
    if (n_prompt_told < n_prompt_to_tell()) n_usable = n_prompt_told;
    return prefix_domain == nullptr ? 0 : n_usable / kernels::kKvBlockTokens;
  }
  // The next `n_rows` tokens have gone through the model.
  void Advance(size_t n_rows) {
    n_cached += n_rows;
    if (prefix_domain == nullptr) return;
    kv.Remember(prefix_domain, known_tokens(), shares_answer ? n_cached : std::min(n_cached, request.prompt.size()));
  }
  // Prompt tokens take the prefill path and generated ones the decode path, also when a preempted sequence is
  // recomputed: so an answer has the same bits whatever happened around it.
  kernels::Phase phase() const {
    return n_cached < request.prompt.size() ? kernels::Phase::kPrefill : kernels::Phase::kDecode;
  }
  // Whether the next token must not be a stop token.
  bool MustGoOn() const { return generated.size() < request.params.min_tokens; }
  // Rows that could run in the next step, all of one phase.
  size_t n_runnable() const {
    return phase() == kernels::Phase::kPrefill ? request.prompt.size() - n_cached : n_pending();
  }
};

std::unique_ptr<Sequence> MakeSequence(GenerationRequest request, RequestLimits limits, int64_t submitted_us,
                                       KvBlocks& blocks);

// Gives the sequence its next token, or -1 when its logits held no number, and says what its client is to be told.
TokenEvent AppendToken(Sequence& sequence, int32_t token, int64_t now_us);

// What a client is told of the next `n_rows` rows of the prompt, all of which it wanted.
TokenEvent TellPrompt(Sequence& sequence, size_t n_rows, std::vector<kernels::TokenLogprob> logprobs, int64_t now_us);

// What a client is told whose sequence is complete without a further token.
TokenEvent Complete(const Sequence& sequence, int64_t now_us);

// What a client is told whose sequence ends now without a further token: kCancelled for kCancelled and
// kDeadlineExceeded, else kError.
TokenEvent CutShort(const Sequence& sequence, Status why, int64_t now_us);

}  // namespace df

#endif  // DELTAFOLD_ENGINE_SEQUENCE_H_
