#include "cli/family.h"

#include <string>

#include "cli/command.h"
#include "cli/model_argument.h"

namespace df::cli {
namespace {

Result<GivenVariant> ParseVariant(const std::string& argument) {
  const size_t equals = argument.find('=');
  if (equals != std::string::npos) return GivenVariant{argument.substr(0, equals), argument.substr(equals + 1)};
  DF_ASSIGN_OR_RETURN(const ModelArgument resolved, ResolveModel(argument));
  return GivenVariant{resolved.name, argument};
}

Result<std::shared_ptr<const Variant>> Choose(const Family& family, const std::string& use) {
  const auto all = family.store->List();
  if (use.empty()) return all.size() == 2 ? all[1] : all[0];
  if (auto found = family.store->FindOrNull(use)) return found;
  std::string names;
  for (const auto& variant : all) names += (names.empty() ? "" : ", ") + variant->name;
  return InvalidArgument("there is no \"" + use + "\"; loaded are: " + names);
}

}  // namespace

void AddFamilyOptions(const Command& command, FamilyOptions& options) {
  command.Option("--model", options.model, "Base model: a directory, or a hub id in the local Hugging Face cache")
      .Required();
  command.Option("--variant", options.variants, "A delta or adapter directory to load on it (repeatable)")
      .TypeName("NAME=PATH")
      .OneValueEach();
  command.Option("--use", options.use, "Which one answers (default: the variant if there is one alone, else the base)")
      .TypeName("NAME");
  command.Option("--threads", options.n_threads, "Threads for kernels, 0 = all usable CPUs").ShowDefault();
  command.Option("--kv-cache-dtype", options.kv_cache_dtype, "auto (bf16 for bf16 checkpoints, else f32), bf16 or f32")
      .ShowDefault();
  command.Option("--max-model-len", options.max_model_len, "Context in tokens, 0 = the model's own").ShowDefault();
  AddKernelOptions(command, options.kernels);
  AddWeightsOption(command, options.weights);
}

void AddSamplingOptions(const Command& command, SamplingOptions& options) {
  command.Option("--temperature", options.temperature, "0 = greedy (default: the model's generation_config.json)");
  command.Option("--top-p", options.top_p, "In (0, 1] (default: the model's)");
  command.Option("--top-k", options.top_k, "0 = off (default: the model's)");
  command.Option("--seed", options.seed, "Makes a sampled answer repeatable");
  command.Option("--max-tokens", options.max_tokens, "Of the answer (default: up to the end of the context)");
}

Result<Family> LoadFamily(const FamilyOptions& options) {
  DF_RETURN_IF_ERROR(CheckKernelOptions(options.kernels));
  KernelContext context(options.n_threads == 0 ? UsableCpus() : options.n_threads);
  Family family;
  DF_ASSIGN_OR_RETURN(const ModelArgument model, ResolveModel(options.model));
  DF_ASSIGN_OR_RETURN(family.base,
                      FromFiles(LoadBaseVariant(context, model.name, options.model, {.memory = options.weights})));
  std::vector<GivenVariant> given;
  for (const std::string& argument : options.variants) {
    DF_ASSIGN_OR_RETURN(given.emplace_back(), ParseVariant(argument));
  }
  // All of them, as long as the program runs.
  DF_ASSIGN_OR_RETURN(family.store, LiveStore::Create(family.base, {.idle_timeout_s = 0, .readers = context.readers}));
  DF_RETURN_IF_ERROR(FromFiles(family.store->AddGiven(given, {})));
  DF_ASSIGN_OR_RETURN(family.chosen, Choose(family, options.use));
  return family;
}

Result<std::unique_ptr<Engine>> StartEngine(const FamilyOptions& options, const Family& family) {
  DF_ASSIGN_OR_RETURN(const DType kv_dtype, ParseKvDtype(options.kv_cache_dtype, *family.base.weights));
  return Engine::Create(family.base.weights, {.n_threads = options.n_threads,
                                              .max_num_seqs = 1,
                                              .max_model_len = options.max_model_len,
                                              .kv_dtype = kv_dtype,
                                              .kernels = options.kernels});
}

SamplingParams SamplingFor(const Variant& variant, const SamplingOptions& options) {
  SamplingParams params = DefaultSampling(variant);
  params.temperature = options.temperature.value_or(params.temperature);
  params.top_p = options.top_p.value_or(params.top_p);
  params.top_k = options.top_k.value_or(params.top_k);
  params.seed = options.seed;
  params.max_tokens = options.max_tokens;
  return params;
}

}  // namespace df::cli
