// What run and chat share: a base with its variants, loaded and behind an engine, and the flags that say which.
#ifndef DELTAFOLD_CLI_FAMILY_H_
#define DELTAFOLD_CLI_FAMILY_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/flags.h"
#include "cli/kernel_arguments.h"
#include "engine/engine.h"
#include "engine/session.h"
#include "store/live_store.h"

namespace df::cli {

struct FamilyOptions {
  std::string model;                  // directory or hub id
  std::vector<std::string> variants;  // NAME=PATH
  std::string use;                    // a name; empty: the variant when there is just one, else the base
  size_t n_threads = 0;
  std::string kv_cache_dtype = "auto";
  size_t max_model_len = 0;
  KernelOptions kernels = kDefaultKernelOptions;
  WeightMemory weights = WeightMemory::kRam;
};

struct SamplingOptions {
  std::optional<double> temperature, top_p;
  std::optional<int32_t> top_k;
  std::optional<uint64_t> seed;
  std::optional<size_t> max_tokens;
};

void AddFamilyOptions(const Command& command, FamilyOptions& options);
void AddSamplingOptions(const Command& command, SamplingOptions& options);

struct Family {
  LoadedBase base;
  std::unique_ptr<LiveStore> store;
  std::shared_ptr<const Variant> chosen;  // by `use`
};

// Loads the weights. NAME=PATH without "=" takes the directory's own name.
Result<Family> LoadFamily(const FamilyOptions& options);
// One sequence at a time: for people at a terminal.
Result<std::unique_ptr<Engine>> StartEngine(const FamilyOptions& options, const Family& family);

// The variant's own defaults under what was asked for.
SamplingParams SamplingFor(const Variant& variant, const SamplingOptions& options);

}  // namespace df::cli

#endif  // DELTAFOLD_CLI_FAMILY_H_
