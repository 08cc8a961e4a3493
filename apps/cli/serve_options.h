// The flags of `deltafold serve`: vLLM's names where the meaning is the same.
#ifndef DELTAFOLD_CLI_SERVE_OPTIONS_H_
#define DELTAFOLD_CLI_SERVE_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "cli/flags.h"
#include "cli/kernel_arguments.h"
#include "store/live_store.h"

namespace df::cli {

struct ServeOptions {
  std::string model;
  std::string served_model_name;  // "" = the model argument's name
  std::string host = "127.0.0.1";
  uint16_t port = 8000;
  std::string port_file;
  std::vector<std::string> api_keys, admin_api_keys;
  std::vector<std::string> allowed_hosts;
  std::string variant_root;                              // "" = nothing is loaded while it runs
  std::vector<std::string> delta_modules, lora_modules;  // NAME=PATH or vLLM's JSON
  std::string delta_modules_from = "--delta-modules", lora_modules_from = "--lora-modules";  // or a variable's name
  std::string chat_template;
  uint64_t variant_bytes = 0;
  std::vector<std::string> pinned;
  size_t auto_pin = 6;
  int64_t variant_idle_timeout_s = 600;
  int64_t variant_wait_timeout_s = 300;
  size_t variant_load_threads = 2;
  uint64_t variant_load_rate = kDefaultLoadBytesPerSecond;
  std::string variant_dir, state_file;
  uint64_t adapter_pool_bytes = 0;  // 0 = no pool
  std::string adapter_pool_dir;     // "" = beside the state file, or a temporary one
  PoolSettings adapter_pool;
  std::optional<double> adapter_pool_threshold;
  std::optional<uint64_t> adapter_pool_rank;
  std::string adapter_pool_dtype, adapter_pool_on_refusal;  // "" = not given
  size_t max_model_len = 0;
  size_t max_num_seqs = 64;
  size_t max_num_batched_tokens = 512;
  size_t max_queued_requests = 256;
  size_t max_logprobs = 20;
  std::string kv_cache_dtype = "auto";
  uint64_t kv_cache_bytes = 0;
  bool enable_prefix_caching = true;
  size_t n_threads = 0;
  int64_t shutdown_timeout_s = 30;
  std::string log_level = "info";
  KernelOptions kernels = kDefaultKernelOptions;
  WeightMemory weights = WeightMemory::kRam;
  bool enable_lora = true;  // accepted: what it asks for always holds
};

void AddServeOptions(const Command& command, ServeOptions& options);

// Of --adapter-pool-*: kInvalidArgument naming one that would have no effect.
Status CheckPoolOptions(const ServeOptions& options);
PoolSettings PoolSettingsOf(const ServeOptions& options);
std::string PoolDirectoryOf(const ServeOptions& options);  // "" = a temporary one
// Without --adapter-pool-bytes: what to say of adapters in a pool beside the state file. "" = nothing.
std::string WhatAnUnusedPoolHolds(const ServeOptions& options);

// The parts of a list in the environment, empty ones left out; a comma within a part's JSON object divides nothing.
std::vector<std::string> SplitAtCommas(std::string_view list);

struct ModuleArgument {
  std::string name;
  std::string path;
  std::string base = {};  // "base_model_name": the base, or a 1-bit variant that the adapter sits on
};
// "NAME=PATH" or {"name": ..., "path": ..., "base_model_name": optional}. kInvalidArgument else.
Result<ModuleArgument> ParseModule(const std::string& argument);

// Whether only this machine can reach `host`.
bool IsLoopback(const std::string& host);

}  // namespace df::cli

#endif  // DELTAFOLD_CLI_SERVE_OPTIONS_H_
