// The adapter pool of `deltafold serve`, as its flags have it.
#include "cli/pool_settings.h"
#include "cli/serve_options.h"
#include "merge/adapter_pool.h"

namespace df::cli {
namespace {

// A slot of two unrelated adapters of one length is off by 0.71 of it for both; one of three may be by 1.12.
constexpr double kDefaultMaxError = 0.9;

}  // namespace

Status CheckPoolOptions(const ServeOptions& options) {
  const PoolPolicy policy = options.adapter_pool.policy;
  struct Given {
    bool is_given;
    const char* flag;
  };
  const Given given[] = {{!options.adapter_pool_dir.empty(), "--adapter-pool-dir"},
                         {policy != PoolPolicy::kKMerge, "--adapter-pool-policy"},
                         {options.adapter_pool.max_error.has_value(), "--adapter-pool-max-error"},
                         {options.adapter_pool_threshold.has_value(), "--adapter-pool-threshold"},
                         {options.adapter_pool_rank.has_value(), "--adapter-pool-rank"},
                         {!options.adapter_pool_dtype.empty(), "--adapter-pool-dtype"},
                         {!options.adapter_pool_on_refusal.empty(), "--adapter-pool-on-refusal"}};
  for (const Given& one : given) {
    if (!one.is_given || options.adapter_pool_bytes > 0) continue;
    return InvalidArgument(std::string(one.flag) +
                           " is for a pool: give --adapter-pool-bytes as well, or leave it out");
  }
  const auto looked_at_by = [&](const char* flag, PoolPolicy wanted) {
    return InvalidArgument(std::string(flag) + " is looked at by --adapter-pool-policy " +
                           std::string(PoolPolicyName(wanted)) + " alone, this is " +
                           std::string(PoolPolicyName(policy)));
  };
  if (options.adapter_pool.max_error && policy != PoolPolicy::kBounded) {
    return looked_at_by("--adapter-pool-max-error", PoolPolicy::kBounded);
  }
  if (!options.adapter_pool_on_refusal.empty() && policy != PoolPolicy::kBounded) {
    return looked_at_by("--adapter-pool-on-refusal", PoolPolicy::kBounded);
  }
  if (options.adapter_pool_threshold && policy != PoolPolicy::kKMergePlus) {
    return looked_at_by("--adapter-pool-threshold", PoolPolicy::kKMergePlus);
  }
  return Status::Ok();
}

PoolSettings PoolSettingsOf(const ServeOptions& options) {
  PoolSettings settings = options.adapter_pool;
  settings.budget_bytes = options.adapter_pool_bytes;
  if (!settings.max_error) settings.max_error = kDefaultMaxError;
  if (options.adapter_pool_threshold) settings.threshold = *options.adapter_pool_threshold;
  settings.rank = options.adapter_pool_rank.value_or(0);
  if (!options.adapter_pool_dtype.empty()) SetPoolDType(options.adapter_pool_dtype, settings);
  if (options.adapter_pool_on_refusal == "evict") settings.on_refusal = PoolRefusal::kEvict;
  return settings;
}

std::string PoolDirectoryOf(const ServeOptions& options) {
  if (!options.adapter_pool_dir.empty() || options.state_file.empty()) return options.adapter_pool_dir;
  return options.state_file + ".pool";
}

std::string WhatAnUnusedPoolHolds(const ServeOptions& options) {
  if (options.adapter_pool_bytes > 0 || options.state_file.empty()) return "";
  const std::string directory = PoolDirectoryOf(options);
  const Result<PoolState> state = AdapterPool::ReadState(directory);
  if (!state.ok()) return "";
  size_t n_ids = 0;
  for (const PoolSlot& slot : state->slots) n_ids += slot.members.size();
  if (n_ids == 0) return "";
  return std::to_string(n_ids) + (n_ids == 1 ? " adapter" : " adapters") + " in the pool " + directory +
         (n_ids == 1 ? " is" : " are") + " not served: start with --adapter-pool-bytes " +
         std::to_string(state->settings.budget_bytes) + ", as before, to have them back, or remove the directory";
}

}  // namespace df::cli
