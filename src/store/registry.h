// Names -> variants, and what a name stands for: shared and immutable.
#ifndef DELTAFOLD_STORE_REGISTRY_H_
#define DELTAFOLD_STORE_REGISTRY_H_

#include <map>
#include <memory>
#include <mutex>
#include <set>
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
  std::string directory = {};             // where its files were found, links resolved
  std::string parent = {};                // name of the 1-bit variant that an adapter sits on; "" = the base
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

struct PutOptions {
  bool replace = false;
  std::string expected_generation = {};  // digest that a replace must find; "" = any
};

// Whether a change was refused because the name stands for another generation than the caller thought.
bool IsGenerationMismatch(const Status& status);
Status GenerationMismatch(const std::string& expected, const std::string& found);
// Whether a change was refused because of those who sit on a name, or of the one it sits on: no fault of its files.
bool IsInUse(const Status& status);
Status InUse(const std::string& why);  // kFailedPrecondition

// Thread-safe. A name resolves once and atomically.
class Registry {
 public:
  Registry(std::string base_name, std::shared_ptr<const Variant> base);

  // CheckServedName; kInvalidArgument as well for "base:..." which means the variant of the rest of the name.
  Status CheckName(const std::string& name) const;
  // Gives `variant` its name. The one that had it before is returned, null when there was none: whoever asked for it
  // keeps it, new requests find the new one. kInvalidArgument for a bad name, kFailedPrecondition when it is taken and
  // `replace` is not set (or is the base's), a generation mismatch when it is not `expected_generation`.
  Result<std::shared_ptr<const Variant>> Put(std::shared_ptr<const Variant> variant, const PutOptions& options);
  // The one that had the name. kNotFound, kFailedPrecondition (the base), a generation mismatch.
  Result<std::shared_ptr<const Variant>> Remove(const std::string& name, const std::string& expected_generation);
  // The variant that a change to `name` would find, checked as by Remove.
  Result<std::shared_ptr<const Variant>> Find(const std::string& name, const std::string& expected_generation) const;
  // The variant called `name`; "base:variant" is accepted for any registered variant. nullptr when unknown.
  std::shared_ptr<const Variant> FindOrNull(std::string_view name) const;
  std::vector<std::shared_ptr<const Variant>> List() const;  // base first, then by name
  // The first name whose parent is `name`; "" = none's is. Takes no longer with more names.
  std::string ChildOf(const std::string& name) const;
  // Whether a name stands for it. Takes no longer with more names.
  bool HasNameFor(const Generation& generation) const;
  const std::string& base_name() const { return base_name_; }

 private:
  using Map = std::map<std::string, std::shared_ptr<const Variant>, std::less<>>;
  Result<Map::const_iterator> FindLocked(const std::string& name, const std::string& expected_generation) const;
  void Count(const Variant& variant);
  void Uncount(const Variant& former, const std::string& next_parent);

  std::string base_name_;
  mutable std::mutex mutex_;
  Map variants_;
  // What variants_ says, the other way round.
  std::map<std::string, std::set<std::string>> children_;  // by parent
  std::map<const Generation*, size_t> n_names_;            // that stand for it
};

}  // namespace df

#endif  // DELTAFOLD_STORE_REGISTRY_H_
