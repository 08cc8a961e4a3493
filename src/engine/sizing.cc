#include "engine/sizing.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>
#include <string_view>

#include "base/thread_pool.h"
#include "engine/kv_cache.h"
#include "model/kv_pool.h"

namespace df {
namespace {

// Bounds of what an operator may ask for: far above any use, far below overflow.
constexpr size_t kMaxThreads = 1024;
constexpr size_t kMaxBatchedTokens = 65536;
constexpr size_t kMaxQueuedRequests = 1'000'000;
// Half of what is free: the rest stays for activations, loads of further variants and the page cache.
constexpr uint64_t kShareOfFreeMemory = 2;

uint64_t ReadNumber(const char* path) {
  std::ifstream file(path);
  uint64_t value = 0;
  return file >> value ? value : 0;
}

// The number behind `name` in a file of "name number" lines; 0 when there is none.
uint64_t ReadNamedNumber(const char* path, std::string_view name) {
  std::ifstream file(path);
  std::string found, rest;
  uint64_t value = 0;
  while (file >> found >> value && found != name) std::getline(file, rest);
  return found == name ? value : 0;
}

Status CheckRange(const char* name, size_t value, size_t max) {
  if (value >= 1 && value <= max) return Status::Ok();
  return InvalidArgument(std::string(name) + " must be from 1 to " + std::to_string(max) + ", got " +
                         std::to_string(value));
}

Status CheckRanges(const EngineOptions& options) {
  DF_RETURN_IF_ERROR(CheckRange("threads", options.n_threads, kMaxThreads));
  DF_RETURN_IF_ERROR(CheckRange("max-num-batched-tokens", options.max_num_batched_tokens, kMaxBatchedTokens));
  DF_RETURN_IF_ERROR(CheckRange("max-num-seqs", options.max_num_seqs, kMaxBatchedTokens));
  DF_RETURN_IF_ERROR(CheckRange("max-queued-requests", options.max_queued_requests, kMaxQueuedRequests));
  if (options.kv_dtype != DType::kF32 && options.kv_dtype != DType::kBf16) {
    return InvalidArgument("kv-cache-dtype must be bf16 or f32, got " + std::string(DTypeName(options.kv_dtype)));
  }
  return Status::Ok();
}

uint64_t SaturatingProduct(uint64_t a, uint64_t b) {
  uint64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<uint64_t>::max() : product;
}

Status SizeKvCache(EngineOptions& options, uint64_t block_bytes, uint64_t available_bytes) {
  const uint64_t needed_blocks = KvBlocksFor(options.max_model_len);
  const uint64_t useful_bytes = SaturatingProduct(SaturatingProduct(needed_blocks, options.max_num_seqs), block_bytes);
  uint64_t bytes = options.kv_cache_bytes;
  if (bytes == 0) {
    bytes = available_bytes == 0 ? useful_bytes : std::min(useful_bytes, available_bytes / kShareOfFreeMemory);
  } else if (available_bytes != 0 && bytes > available_bytes) {
    return FailedPrecondition("kv-cache-bytes " + std::to_string(bytes) + " is more than the free memory of " +
                              std::to_string(available_bytes) + " bytes");
  }
  // Block ids are int32.
  const uint64_t n_blocks = std::min<uint64_t>(bytes / block_bytes, std::numeric_limits<int32_t>::max());
  options.kv_cache_bytes = n_blocks * block_bytes;
  return Status::Ok();
}

}  // namespace

uint64_t AvailableMemoryBytes() {
  const uint64_t available = ReadNamedNumber("/proc/meminfo", "MemAvailable:") * 1024;
  const uint64_t limit = ReadNumber("/sys/fs/cgroup/memory.max");  // "max" reads as 0: no limit
  if (limit == 0) return available;
  // Pages of files that were not used lately count as used, but go when they are needed.
  const uint64_t used = ReadNumber("/sys/fs/cgroup/memory.current");
  const uint64_t reclaimable = ReadNamedNumber("/sys/fs/cgroup/memory.stat", "inactive_file");
  const uint64_t held = used - std::min(used, reclaimable);
  return std::min(available, limit - std::min(limit, held));
}

Result<EngineOptions> ResolveOptions(const ModelConfig& config, EngineOptions options, uint64_t available_bytes) {
  if (options.n_threads == 0) options.n_threads = UsableCpus();
  DF_RETURN_IF_ERROR(CheckRanges(options));
  options.max_num_seqs = std::min(options.max_num_seqs, options.max_num_batched_tokens);

  const bool context_given = options.max_model_len != 0;
  if (options.max_model_len > config.max_positions) {
    return InvalidArgument("max-model-len " + std::to_string(options.max_model_len) + " is more than the model's " +
                           std::to_string(config.max_positions) + " positions");
  }
  if (!context_given) options.max_model_len = config.max_positions;
  if (options.max_model_len < 2) return InvalidArgument("max-model-len must be at least 2");

  const uint64_t block_bytes = KvPool::BlockBytes(config, options.kv_dtype);
  DF_RETURN_IF_ERROR(SizeKvCache(options, block_bytes, available_bytes));
  const uint64_t held_tokens = options.kv_cache_bytes / block_bytes * kernels::kKvBlockTokens;
  if (held_tokens < options.max_model_len) {
    if (context_given || held_tokens == 0) {
      return FailedPrecondition("the KV cache holds " + std::to_string(held_tokens) +
                                " tokens, fewer than one sequence of " + std::to_string(options.max_model_len) + " (" +
                                std::to_string(KvBlocksFor(options.max_model_len) * block_bytes) +
                                " bytes): raise kv-cache-bytes or lower max-model-len");
    }
    options.max_model_len = held_tokens;
  }
  return options;
}

}  // namespace df
