// The adapter pool of `deltafold serve`, as its flags have it.
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
                         {options.adapter_pool_threshold.has_value(), "--adapter-pool-threshold"}};
  for (const Given& one : given) {
    if (!one.is_given || options.adapter_pool_bytes > 0) continue;
    return InvalidArgument(std::string(one.flag) +
                           " is for a pool: give --adapter-pool-bytes as well, or leave it out");
  }
  if (options.adapter_pool.max_error && policy != PoolPolicy::kBounded) {
    return InvalidArgument("--adapter-pool-max-error is looked at by --adapter-pool-policy bounded alone, this is " +
                           std::string(PoolPolicyName(policy)));
  }
  if (options.adapter_pool_threshold && policy != PoolPolicy::kKMergePlus) {
    return InvalidArgument("--adapter-pool-threshold is looked at by --adapter-pool-policy kmerge++ alone, this is " +
                           std::string(PoolPolicyName(policy)));
  }
  return Status::Ok();
}

PoolSettings PoolSettingsOf(const ServeOptions& options) {
  PoolSettings settings = options.adapter_pool;
  settings.budget_bytes = options.adapter_pool_bytes;
  if (!settings.max_error) settings.max_error = kDefaultMaxError;
  if (options.adapter_pool_threshold) settings.threshold = *options.adapter_pool_threshold;
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
         " are not served: start with --adapter-pool-bytes " + std::to_string(state->settings.budget_bytes) +
         ", as before, to have them back, or remove the directory";
}

}  // namespace df::cli
