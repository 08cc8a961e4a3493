// store/: names -> variants. Input: directories given by the operator; output: shared, immutable Variants. Called by
// the commands at start and by server/ for every request. Everything registered is resident.
#ifndef DELTAFOLD_STORE_REGISTRY_H_
#define DELTAFOLD_STORE_REGISTRY_H_

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/weights.h"
#include "store/generation.h"
#include "text/model_text.h"

namespace df {

// A served name: the base itself, a 1-bit delta or a LoRA adapter, with its own tokenizer, template and generation
// defaults.
struct Variant {
  std::string name;
  std::string root;                       // the string the operator gave
  GenerationRef generation;               // null for the base
  std::shared_ptr<const ModelText> text;  // the base's where the variant has none of its own
  GenerationDefaults defaults;
  std::vector<int32_t> eos_ids;
  size_t max_model_len = 0;
  uint64_t stored_bytes = 0;    // on disk: weights only
  uint64_t resident_bytes = 0;  // in memory: weights only
  int64_t created_unix = 0;

  bool IsBase() const { return generation == nullptr; }
  std::string_view KindName() const;  // "base", "delta", "lora"
};

// Names stand in JSON, URLs, metric labels and comma-separated flags. kInvalidArgument for a bad one: empty, over 256
// bytes, not UTF-8, with spaces and control characters, comma, equals sign, quote, backslash, "." and ".." path parts.
Status CheckServedName(const std::string& name);

// Thread-safe.
class Registry {
 public:
  Registry(std::string base_name, std::shared_ptr<const Variant> base);

  // kInvalidArgument for a bad name, kFailedPrecondition when taken.
  Status Add(std::shared_ptr<const Variant> variant);
  // The variant called `name`; "base:variant" is accepted for any registered variant. nullptr when unknown.
  std::shared_ptr<const Variant> FindOrNull(std::string_view name) const;
  std::vector<std::shared_ptr<const Variant>> List() const;  // base first, then by name
  const std::string& base_name() const { return base_name_; }
  uint64_t ResidentWeightBytes() const;  // base + distinct variants

 private:
  std::string base_name_;
  mutable std::mutex mutex_;
  std::map<std::string, std::shared_ptr<const Variant>, std::less<>> variants_;
};

struct LoadedBase {
  std::shared_ptr<const BaseWeights> weights;
  std::shared_ptr<const Variant> variant;
};
// Loads a model directory (or hub id in the local cache) as the base.
Result<LoadedBase> LoadBaseVariant(KernelContext& context, const std::string& name, const std::string& directory,
                                   WeightMemory memory = WeightMemory::kRam);

struct LoadedVariantWeights {
  std::shared_ptr<const VariantWeights> weights;
  GenerationDefaults defaults;
  std::string directory;  // resolved
  uint64_t stored_bytes = 0;
};
// The weights alone of a delta or an adapter directory; the kind is read from its files. Digest, fingerprint and
// structure are verified. Errors name what is wrong, never approximate.
Result<LoadedVariantWeights> LoadVariantWeights(KernelContext& context, const BaseWeights& base,
                                                const std::string& directory);
// The same with its text side, ready to be registered as `name`.
Result<std::shared_ptr<const Variant>> LoadVariant(KernelContext& context, const LoadedBase& base,
                                                   const std::string& name, const std::string& directory);

}  // namespace df

#endif  // DELTAFOLD_STORE_REGISTRY_H_
