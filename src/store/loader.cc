// From directories to what is registered.
#include <algorithm>
#include <ctime>
#include <string>
#include <utility>

#include "base/presence.h"
#include "format/delta_dir.h"
#include "format/peft_adapter.h"
#include "format/variant_kind.h"
#include "store/registry.h"

namespace df {
namespace {

// generation_config.json has the last word where it names stop tokens, as in the reference; the tokenizer's own
// end token always counts.
std::vector<int32_t> StopTokens(const ModelText& text, const GenerationDefaults& defaults, const ModelConfig& config) {
  std::vector<int32_t> ids = defaults.eos_ids.empty() ? config.eos_ids : defaults.eos_ids;
  ids.insert(ids.end(), text.stop_ids.begin(), text.stop_ids.end());
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

struct VariantParts {
  std::string root, directory;
  const ModelConfig& config;
  GenerationDefaults defaults;
  const ModelText* base_text = nullptr;
};

// Everything of a variant but its weights.
Result<std::shared_ptr<Variant>> MakeVariant(const std::string& name, VariantParts parts) {
  auto variant = std::make_shared<Variant>();
  DF_ASSIGN_OR_RETURN(ModelText text, LoadModelText(parts.directory, parts.base_text));
  variant->name = name;
  variant->root = std::move(parts.root);
  variant->eos_ids = StopTokens(text, parts.defaults, parts.config);
  variant->text = std::make_shared<const ModelText>(std::move(text));
  variant->defaults = std::move(parts.defaults);
  variant->max_model_len = parts.config.max_positions;
  variant->created_unix = std::time(nullptr);
  return variant;
}

Result<LoadedVariantWeights> LoadDeltaWeights(KernelContext& context, const BaseWeights& base,
                                              const std::string& directory) {
  LoadedVariantWeights loaded;
  DF_ASSIGN_OR_RETURN(const auto delta, DeltaDirectory::Open(directory));
  DF_RETURN_IF_ERROR(delta->VerifyDigest());
  DF_ASSIGN_OR_RETURN(loaded.weights, LoadDelta(context, base, *delta));
  DF_RETURN_IF_ERROR(delta->CheckIntact());  // a file cut short while it was read has been read as zeros
  loaded.stored_bytes = delta->stored_bytes();
  return loaded;
}

Result<LoadedVariantWeights> LoadAdapterWeights(KernelContext& context, const BaseWeights& base,
                                                const std::string& directory) {
  LoadedVariantWeights loaded;
  DF_ASSIGN_OR_RETURN(const auto adapter, PeftAdapter::Open(directory));
  DF_ASSIGN_OR_RETURN(loaded.weights, LoadAdapter(context, base, *adapter));
  DF_RETURN_IF_ERROR(adapter->file().file().CheckIntact());
  loaded.stored_bytes = adapter->file().file().bytes().size();
  return loaded;
}

Result<LoadedVariantWeights> LoadByKind(KernelContext& context, const BaseWeights& base, const std::string& directory) {
  DF_ASSIGN_OR_RETURN(const DirectoryKind kind, KindOfDirectory(directory));
  switch (kind) {
    case DirectoryKind::kDelta: return LoadDeltaWeights(context, base, directory);
    case DirectoryKind::kModel:
      return FailedPrecondition(
          "a full model, not a variant: make a delta of it first (deltafold compress) and give that");
    case DirectoryKind::kAdapter:
    case DirectoryKind::kNothing: break;  // the adapter's reader tells what is missing
  }
  return LoadAdapterWeights(context, base, directory);
}

}  // namespace

Result<LoadedVariantWeights> LoadVariantWeights(KernelContext& context, const BaseWeights& base,
                                                const std::string& directory) {
  DF_ASSIGN_OR_RETURN(const std::string resolved, ResolveModelDirectory(directory));
  DF_ASSIGN_OR_RETURN(LoadedVariantWeights loaded, LoadByKind(context, base, resolved));
  DF_ASSIGN_OR_RETURN(loaded.defaults, LoadGenerationDefaults(resolved));
  loaded.directory = resolved;
  return loaded;
}

Result<LoadedBase> LoadBaseVariant(KernelContext& context, const std::string& name, const std::string& directory,
                                   WeightMemory memory) {
  LoadedBase loaded;
  DF_ASSIGN_OR_RETURN(const std::string resolved, ResolveModelDirectory(directory));
  DF_ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::Open(resolved));
  DF_ASSIGN_OR_RETURN(GenerationDefaults defaults, LoadGenerationDefaults(resolved));
  DF_ASSIGN_OR_RETURN(auto variant, MakeVariant(name, {.root = directory,
                                                       .directory = resolved,
                                                       .config = checkpoint->config(),
                                                       .defaults = std::move(defaults)}));
  DF_ASSIGN_OR_RETURN(loaded.weights, LoadBase(context, checkpoint, memory));
  DF_RETURN_IF_ERROR(checkpoint->CheckIntact());
  variant->stored_bytes = checkpoint->weight_bytes();
  variant->resident_bytes = loaded.weights->bytes;
  loaded.variant = std::move(variant);
  return loaded;
}

Result<std::shared_ptr<const Variant>> LoadVariant(KernelContext& context, const LoadedBase& base,
                                                   const std::string& name, const std::string& directory) {
  Result<LoadedVariantWeights> loaded = LoadVariantWeights(context, *base.weights, directory);
  if (!loaded.ok()) return loaded.status().Annotate("variant \"" + name + "\"");
  // A variant that says nothing of its own samples as the base does.
  GenerationDefaults defaults = base.variant->defaults;
  DF_ASSIGN_OR_RETURN(const bool has_own, HasFile(loaded->directory + "/generation_config.json"));
  if (has_own) defaults = loaded->defaults;
  Result<std::shared_ptr<Variant>> variant = MakeVariant(name, {.root = directory,
                                                                .directory = loaded->directory,
                                                                .config = loaded->weights->config,
                                                                .defaults = std::move(defaults),
                                                                .base_text = base.variant->text.get()});
  if (!variant.ok()) return variant.status().Annotate("variant \"" + name + "\"");
  (*variant)->generation = FixedGeneration(loaded->weights);
  (*variant)->stored_bytes = loaded->stored_bytes;
  (*variant)->resident_bytes = loaded->weights->bytes;
  return std::shared_ptr<const Variant>(std::move(*variant));
}

}  // namespace df
