// engine/: continuous batching on one thread. Input: GenerationRequests from any thread; output: token events. A step
// takes decode rows and prefill chunks of any variants together. Called by session.h, which speaks text.
#ifndef DELTAFOLD_ENGINE_ENGINE_H_
#define DELTAFOLD_ENGINE_ENGINE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "engine/request.h"
#include "model/weights.h"
#include "tensor/dtype.h"
#include "tensor/kernel_context.h"

namespace df {

struct EngineOptions {
  size_t n_threads = 0;                 // 0 = UsableCpus()
  size_t max_num_seqs = 64;             // sequences in the running set; at most max_num_batched_tokens
  size_t max_num_batched_tokens = 512;  // rows a step: decode rows first, the rest prefill chunks
  size_t max_model_len = 0;             // 0 = the base's max positions, less if the KV cache cannot hold them
  size_t max_queued_requests = 256;     // that wait for one variant, the base being one; beyond: kResourceExhausted
  int64_t longest_weights_wait_us = 0;  // of a request that has not run yet, then kUnavailable; 0 = as long as it takes
  DType kv_dtype = DType::kBf16;
  KernelOptions kernels = {};
  size_t max_logprobs = 20;           // likeliest tokens that a request may ask for beside each of its own
  bool enable_prefix_caching = true;  // keep what full blocks of prompts hold for those that begin alike
  uint64_t kv_cache_bytes = 0;        // 0 = a share of free memory, at most what max_num_seqs x max_model_len needs
  uint64_t promised_bytes = 0;        // free now, but others will take it: variants to come
};

// A snapshot for metrics; counters only grow.
struct EngineStats {
  uint64_t n_running = 0, n_waiting = 0;
  uint64_t kv_blocks_used = 0, kv_blocks_total = 0;
  uint64_t prompt_tokens = 0, generation_tokens = 0, preemptions = 0, steps = 0;
  uint64_t prefix_cache_queries = 0, prefix_cache_hits = 0;  // tokens of prompts; of them, found in the cache
  uint64_t weight_bytes = 0, kv_bytes = 0, activation_bytes = 0;
  // What all steps together had to move and compute at least (kernels/cost.h), and how long they took: set beside the
  // machine's limits, the share of them that is reached.
  double step_bytes = 0, step_flops = 0, step_seconds = 0;
};

// "--kv-cache-dtype": "auto" (bf16 for bf16 checkpoints, else f32), "bf16" or "f32"; kInvalidArgument otherwise.
Result<DType> ParseKvDtype(std::string_view flag, const BaseWeights& base);

// Thread-safe. The destructor cancels what is left (reason kCancelled) and joins the engine thread.
class Engine {
 public:
  // The only errors are kInvalidArgument (an option out of range, named) and kFailedPrecondition (the KV cache does not
  // fit into free memory, or cannot hold one sequence of max_model_len: both numbers are named; or what
  // kernels/prefill_dtype.h refuses).
  static Result<std::unique_ptr<Engine>> Create(std::shared_ptr<const BaseWeights> base, EngineOptions options);
  virtual ~Engine() = default;

  // Takes the request or refuses it at once: kInvalidArgument (prompt + 1 > context length of the variant here: message
  // with both numbers; a prompt token out of range; an empty prompt; a parameter out of range, named),
  // kResourceExhausted (the queue of its variant is full), kUnavailable (shutting down). Every accepted request ends
  // with exactly one event that has `finish`.
  virtual Status Submit(GenerationRequest request) = 0;
  // Asks for the end of a request; its blocks are free within one step. Unknown ids are ignored.
  virtual void Cancel(const std::string& id) = 0;
  // Weights that waiting requests have asked for may be there, or have failed: the engine asks again. Cheap; never
  // blocks; to be called by whoever loads them, from any thread.
  virtual void Wake() = 0;

  virtual EngineStats Stats() const = 0;
  virtual const EngineOptions& options() const = 0;  // as resolved
  virtual const BaseWeights& base() const = 0;
  // False once the engine thread has not finished a step for 30 s with work at hand, or mapped base weights were lost:
  // every request then ends with BaseWeights::CheckIntact().
  virtual bool Healthy() const = 0;
};

}  // namespace df

#endif  // DELTAFOLD_ENGINE_ENGINE_H_
