// What other threads call.
#include <unistd.h>

#include <algorithm>
#include <new>

#include "engine/engine_loop.h"
#include "engine/sizing.h"
#include "kernels/prefill_dtype.h"

namespace df {
namespace {

constexpr int64_t kStalledUs = 30'000'000;  // the contract of Healthy()

uint64_t UnpredictableSeed() {
  uint64_t seed = 0;
  if (getentropy(&seed, sizeof(seed)) != 0) seed = static_cast<uint64_t>(SteadyClock().NowUs());
  return seed;
}

size_t NumBlocks(const ModelConfig& config, const EngineOptions& options) {
  return static_cast<size_t>(options.kv_cache_bytes / KvPool::BlockBytes(config, options.kv_dtype));
}

}  // namespace

Result<DType> ParseKvDtype(std::string_view flag, const BaseWeights& base) {
  if (flag == "bf16") return DType::kBf16;
  if (flag == "f32") return DType::kF32;
  if (flag == "auto") return base.embedding.weight.dtype == DType::kBf16 ? DType::kBf16 : DType::kF32;
  return InvalidArgument("kv-cache-dtype must be auto, bf16 or f32, got \"" + std::string(flag) + "\"");
}

Result<std::unique_ptr<Engine>> Engine::Create(std::shared_ptr<const BaseWeights> base, EngineOptions options) {
  DF_RETURN_IF_ERROR(kernels::CheckPrefillDtype(options.kernels.prefill_dtype));
  const uint64_t free_bytes = AvailableMemoryBytes();
  if (free_bytes != 0 && options.promised_bytes >= free_bytes) {
    return FailedPrecondition("no memory for a KV cache: " + std::to_string(free_bytes) + " bytes are free, " +
                              std::to_string(options.promised_bytes) + " are kept for variants; lower variant-bytes");
  }
  DF_ASSIGN_OR_RETURN(options,
                      ResolveOptions(base->config, options, free_bytes == 0 ? 0 : free_bytes - options.promised_bytes));
  try {
    return std::unique_ptr<Engine>(std::make_unique<EngineLoop>(std::move(base), options, UnpredictableSeed()));
  } catch (const std::bad_alloc&) {
    return FailedPrecondition("no memory for a KV cache of " + std::to_string(options.kv_cache_bytes) +
                              " bytes; lower kv-cache-bytes");
  }
}

EngineLoop::EngineLoop(std::shared_ptr<const BaseWeights> base, const EngineOptions& options, uint64_t seed)
    : base_(std::move(base)),
      options_(options),
      seed_(seed),
      inbox_(options.max_queued_requests),
      context_(options.n_threads, options.kernels),
      kv_pool_(base_->config, {.dtype = options.kv_dtype, .n_blocks = NumBlocks(base_->config, options)}),
      decoder_(base_),
      blocks_(kv_pool_.n_blocks()),
      scheduler_({.max_num_seqs = options.max_num_seqs,
                  .max_num_batched_tokens = options.max_num_batched_tokens,
                  .longest_weights_wait_us = options.longest_weights_wait_us},
                 blocks_) {
  counters_.kv_blocks_total = blocks_.n_total();
  counters_.weight_bytes = base_->bytes;
  counters_.kv_bytes = kv_pool_.bytes();
  stats_ = counters_;
  thread_ = std::thread([this] { Run(); });
}

EngineLoop::~EngineLoop() {
  inbox_.Stop();
  thread_.join();
}

Status EngineLoop::Submit(GenerationRequest request) {
  DF_RETURN_IF_ERROR(CheckRequest(request, LimitsOf(request)));
  if (request.variant != nullptr) request.variant->CountRequest(clock_.NowUs());
  return inbox_.Submit({.request = std::move(request), .submitted_us = clock_.NowUs()});
}

void EngineLoop::Cancel(const std::string& id) { inbox_.Cancel(id); }

void EngineLoop::Wake() { inbox_.Wake(); }

EngineStats EngineLoop::Stats() const {
  EngineStats stats;
  {
    const std::scoped_lock lock(stats_mutex_);
    stats = stats_;
  }
  stats.n_waiting = inbox_.n_waiting();
  return stats;
}

bool EngineLoop::Healthy() const {
  if (!base_->CheckIntact().ok()) return false;
  const int64_t since_us = busy_since_us_.load(std::memory_order_relaxed);
  return since_us == kIdle || clock_.NowUs() - since_us < kStalledUs;
}

RequestLimits EngineLoop::LimitsOf(const GenerationRequest& request) const {
  const ModelConfig& config = request.variant ? request.variant->info().config : base_->config;
  return {.context_tokens = std::min(options_.max_model_len, config.max_positions),
          .vocab = config.vocab,
          .max_logprobs = options_.max_logprobs};
}

}  // namespace df
