// A request inside the engine: what was asked, what was generated, what the KV cache holds of it.
#ifndef DELTAFOLD_ENGINE_SEQUENCE_H_
#define DELTAFOLD_ENGINE_SEQUENCE_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "engine/kv_cache.h"
#include "engine/request.h"
#include "kernels/linear.h"

namespace df {

// Engine thread only.
struct Sequence {
  Sequence(GenerationRequest r, KvBlocks& blocks) : request(std::move(r)), kv(blocks) {}

  GenerationRequest request;
  uint64_t seed = 0;
  uint64_t arrival = 0;              // order of acceptance
  size_t token_limit = 0;            // prompt and answer together: the context's end or max_tokens
  std::vector<int32_t> stop_tokens;  // each ends the sequence; of the variant's vocabulary, no token twice
  int64_t submitted_us = 0;
  int64_t deadline_us = std::numeric_limits<int64_t>::max();
  int64_t admitted_us = -1;  // first time in the running set

  std::vector<int32_t> generated;
  size_t n_cached = 0;  // leading tokens whose keys and values are in the cache
  KvLease kv;
  ResidencyLease lease;  // of the variant; while in the running set

  size_t n_tokens() const { return request.prompt.size() + generated.size(); }
  size_t n_pending() const { return n_tokens() - n_cached; }  // >= 1 between steps
  int32_t Token(size_t i) const {
    return i < request.prompt.size() ? request.prompt[i] : generated[i - request.prompt.size()];
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

// What a client is told whose sequence ends now without a further token: kCancelled for kCancelled and
// kDeadlineExceeded, else kError.
TokenEvent CutShort(const Sequence& sequence, Status why, int64_t now_us);

}  // namespace df

#endif  // DELTAFOLD_ENGINE_SEQUENCE_H_
