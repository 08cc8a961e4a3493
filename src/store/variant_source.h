// A variant on disk, opened: everything of it but its weights in memory, which are packed from it as often as they are
// needed. Its files stay open and mapped, so that replacing them by rename changes nothing here; a change in place is
// found by the digest when the weights are packed the next time.
#ifndef DELTAFOLD_STORE_VARIANT_SOURCE_H_
#define DELTAFOLD_STORE_VARIANT_SOURCE_H_

#include <memory>
#include <string>
#include <vector>

#include "store/generation.h"
#include "store/registry.h"

namespace df {

struct LoadedBase {
  std::shared_ptr<const BaseWeights> weights;
  std::shared_ptr<const Variant> variant;
};
struct BaseLoadOptions {
  WeightMemory memory = WeightMemory::kRam;
  const ModelText* text_under = nullptr;  // of a directory without tokenizer or template of its own; null = none
};
// Loads a model directory (or hub id in the local cache) as the base. Errors are the readers'.
Result<LoadedBase> LoadBaseVariant(KernelContext& context, const std::string& name, const std::string& directory,
                                   const BaseLoadOptions& options = {});

// Immutable, thread-safe.
struct VariantSource {
  std::string directory;                        // links resolved
  GenerationInfo info;                          // resident_bytes from shapes and dtypes
  std::string weights_digest;                   // of an adapter: that of its weights, without the files of its text
  std::shared_ptr<const DeltaDirectory> delta;  // one of these two
  std::shared_ptr<const PeftAdapter> adapter;   //
  bool verified = false;                        // every byte was read and compared when it was opened
  GenerationRef parent;                         // of an adapter on a 1-bit variant; null = the base
};

struct OpenOptions {
  GenerationRef parent = nullptr;                // of an adapter: a 1-bit variant of the same base
  const VariantSource* parent_source = nullptr;  // its files
  // Reads every byte and compares the digest. Without it whoever opens loads at once, which does the same.
  bool verify = true;
};
// Opens a delta's or an adapter's directory (or hub id) on `base`: kind, structure, fingerprint, shapes and finite
// scales are checked. The only errors are the readers', kFailedPrecondition (another base; a full model; a delta on a
// parent) and kInvalidArgument (an adapter that fits nothing). Messages name files.
Result<std::shared_ptr<const VariantSource>> OpenVariant(const BaseWeights& base, const std::string& directory,
                                                         const OpenOptions& options = {});

// Reads every byte and compares the digest: OpenVariant's errors.
Status VerifySource(const VariantSource& source);

// The text side of `source` for a variant called `name`: what it lacks is that of `under`, the variant that it was made
// on: its parent, or the base. LoadModelText's errors.
Result<std::shared_ptr<Variant>> DescribeVariant(const Variant& under, const VariantSource& source,
                                                 const std::string& name, const TokenizerLoader& load_tokenizer = {});

// Packs the weights. `parent` are those of source.parent, null without. kUnavailable starting with kGenerationGone when
// the files were changed in place since they were opened (kCorrupt when this is the first reading), kResourceExhausted
// without memory, kInternal when they hold more bytes than info says, and what `progress` answers.
inline constexpr std::string_view kGenerationGone = "generation_gone";
// Whether a failure is that one, whatever others have said around it.
inline bool IsGenerationGone(const Status& status) {
  return status.code() == StatusCode::kUnavailable && status.message().find(kGenerationGone) != std::string::npos;
}
struct PackOptions {
  std::shared_ptr<const VariantWeights> parent = nullptr;
  bool first_reading = false;
  std::function<Status(size_t bytes)> progress = {};
};
Result<std::shared_ptr<const VariantWeights>> PackVariant(KernelContext& context, const BaseWeights& base,
                                                          const VariantSource& source, const PackOptions& options = {});

// Opened and packed at once, for programs and tests that keep what they use.
Result<std::shared_ptr<const VariantWeights>> LoadVariantWeights(KernelContext& context, const BaseWeights& base,
                                                                 const std::string& directory);

}  // namespace df

#endif  // DELTAFOLD_STORE_VARIANT_SOURCE_H_
