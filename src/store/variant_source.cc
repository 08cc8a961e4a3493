#include "store/variant_source.h"

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <new>
#include <utility>

#include "base/presence.h"
#include "format/delta_dir.h"
#include "format/digest.h"
#include "format/peft_adapter.h"
#include "format/served_files.h"
#include "format/variant_kind.h"

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

struct TextParts {
  const std::string& directory;
  const ModelConfig& config;
  GenerationDefaults defaults;
  const ModelText* text_under = nullptr;  // of what it was made on
  const TokenizerLoader& load_tokenizer = {};
};

Result<std::shared_ptr<Variant>> MakeVariant(const std::string& name, TextParts parts) {
  auto variant = std::make_shared<Variant>();
  DF_ASSIGN_OR_RETURN(ModelText text, LoadModelText(parts.directory, parts.text_under, parts.load_tokenizer));
  variant->name = name;
  variant->root = variant->directory = parts.directory;
  variant->eos_ids = StopTokens(text, parts.defaults, parts.config);
  variant->text = std::make_shared<const ModelText>(std::move(text));
  variant->defaults = std::move(parts.defaults);
  variant->max_model_len = parts.config.max_positions;
  variant->created_unix = std::time(nullptr);
  return variant;
}

// A directory whose files are all of one moment, though a link to it may be turned: Kubernetes replaces volumes so.
Result<std::string> Canonical(const std::string& directory) {
  std::error_code error;
  const std::filesystem::path path = std::filesystem::canonical(directory, error);
  if (error) return error.value() == ENOENT ? AbsenceOf(directory) : IoError("cannot open " + directory, error.value());
  return path.string();
}

Status OpenDelta(const BaseWeights& base, const OpenOptions& options, VariantSource& source) {
  if (options.parent != nullptr) return FailedPrecondition("a 1-bit delta is made for the base: it takes no parent");
  DF_ASSIGN_OR_RETURN(source.delta,
                      DeltaDirectory::Open(source.directory, DeltaDirectory::Scales::kLeaveToContentCheck));
  const DeltaDirectory& delta = *source.delta;
  DF_ASSIGN_OR_RETURN(const size_t bytes, DeltaBytes(base, delta));
  DF_RETURN_IF_ERROR(options.verify ? delta.VerifyDigest() : delta.VerifySideFiles());
  source.info = {.kind = VariantKind::kDelta,
                 .digest = {},
                 .config = delta.config(),
                 .stored_bytes = delta.stored_bytes(),
                 .resident_bytes = bytes};
  DF_ASSIGN_OR_RETURN(source.info.digest, delta.Generation());
  return Status::Ok();
}

Status OpenAdapter(const BaseWeights& base, const OpenOptions& options, VariantSource& source) {
  DF_CHECK((options.parent == nullptr) == (options.parent_source == nullptr));
  const DeltaDirectory* parent = options.parent_source == nullptr ? nullptr : options.parent_source->delta.get();
  DF_ASSIGN_OR_RETURN(source.adapter, PeftAdapter::Open(source.directory));
  DF_ASSIGN_OR_RETURN(const AdapterSize size, MeasureAdapter(base, *source.adapter, parent));
  source.info = {.kind = VariantKind::kLora,
                 .digest = {},
                 .config = parent == nullptr ? base.config : parent->config(),
                 .stored_bytes = source.adapter->file().file().bytes().size(),
                 .resident_bytes = size.most_bytes};
  source.info.config.vocab = size.vocab;
  DF_ASSIGN_OR_RETURN(source.weights_digest, source.adapter->Digest());
  if (options.parent != nullptr) {
    Digest both;  // as LoadAdapter
    both.AddText(options.parent->info().digest);
    both.AddText(source.weights_digest);
    source.weights_digest = both.Hex();
  }
  Digest all;
  all.AddText(source.weights_digest);
  DF_ASSIGN_OR_RETURN(const bool has_text, AddServedFiles(source.directory, all));
  source.info.digest = has_text ? all.Hex() : source.weights_digest;
  return Status::Ok();
}

Result<std::shared_ptr<const VariantWeights>> Pack(KernelContext& context, const BaseWeights& base,
                                                   const VariantSource& source, const PackOptions& options) {
  if (source.delta != nullptr) {
    return LoadDelta(context, base, *source.delta, {.digest = source.info.digest, .progress = options.progress});
  }
  DF_ASSIGN_OR_RETURN(auto weights, LoadAdapter(context, base, *source.adapter, options.parent));
  if (weights->digest != source.weights_digest) return Corrupt("the adapter's tensors have digest " + weights->digest);
  if (options.progress) DF_RETURN_IF_ERROR(options.progress(weights->bytes));
  return weights;
}

}  // namespace

Result<LoadedBase> LoadBaseVariant(KernelContext& context, const std::string& name, const std::string& directory,
                                   const BaseLoadOptions& options) {
  LoadedBase loaded;
  DF_ASSIGN_OR_RETURN(const std::string resolved, ResolveModelDirectory(directory));
  DF_ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::Open(resolved));
  DF_ASSIGN_OR_RETURN(GenerationDefaults defaults, LoadGenerationDefaults(resolved));
  DF_ASSIGN_OR_RETURN(auto variant, MakeVariant(name, {.directory = resolved,
                                                       .config = checkpoint->config(),
                                                       .defaults = std::move(defaults),
                                                       .text_under = options.text_under}));
  DF_ASSIGN_OR_RETURN(loaded.weights, LoadBase(context, checkpoint, options.memory));
  DF_RETURN_IF_ERROR(checkpoint->CheckIntact());
  variant->root = directory;
  variant->stored_bytes = checkpoint->weight_bytes();
  variant->resident_bytes = loaded.weights->bytes;
  loaded.variant = std::move(variant);
  return loaded;
}

Result<std::shared_ptr<const VariantSource>> OpenVariant(const BaseWeights& base, const std::string& directory,
                                                         const OpenOptions& options) {
  auto source = std::make_shared<VariantSource>();
  DF_ASSIGN_OR_RETURN(const std::string resolved, ResolveModelDirectory(directory));
  DF_ASSIGN_OR_RETURN(source->directory, Canonical(resolved));
  source->parent = options.parent;
  source->verified = options.verify;
  DF_ASSIGN_OR_RETURN(const DirectoryKind kind, KindOfDirectory(source->directory));
  switch (kind) {
    case DirectoryKind::kDelta: DF_RETURN_IF_ERROR(OpenDelta(base, options, *source)); break;
    case DirectoryKind::kModel:
      return FailedPrecondition(
          "a full model, not a variant: make a delta of it first (deltafold compress) and give that");
    case DirectoryKind::kAdapter:
    case DirectoryKind::kNothing:  // the adapter's reader tells what is missing
      DF_RETURN_IF_ERROR(OpenAdapter(base, options, *source));
      break;
  }
  return std::shared_ptr<const VariantSource>(std::move(source));
}

Status VerifySource(const VariantSource& source) {
  // An adapter states no digest of its own: what was read when it was opened is what it is.
  return source.delta != nullptr ? source.delta->VerifyDigest() : Status::Ok();
}

Result<std::shared_ptr<Variant>> DescribeVariant(const Variant& under, const VariantSource& source,
                                                 const std::string& name, const TokenizerLoader& load_tokenizer) {
  // A variant that says nothing of its own samples as what it was made on.
  GenerationDefaults defaults = under.defaults;
  DF_ASSIGN_OR_RETURN(const bool has_own, HasFile(source.directory + "/generation_config.json"));
  if (has_own) {
    DF_ASSIGN_OR_RETURN(defaults, LoadGenerationDefaults(source.directory));
  }
  DF_ASSIGN_OR_RETURN(auto variant, MakeVariant(name, {.directory = source.directory,
                                                       .config = source.info.config,
                                                       .defaults = std::move(defaults),
                                                       .text_under = under.text.get(),
                                                       .load_tokenizer = load_tokenizer}));
  variant->stored_bytes = source.info.stored_bytes;
  variant->resident_bytes = source.info.resident_bytes;
  return variant;
}

Result<std::shared_ptr<const VariantWeights>> PackVariant(KernelContext& context, const BaseWeights& base,
                                                          const VariantSource& source, const PackOptions& options) {
  try {
    auto weights = Pack(context, base, source, options);
    if (!weights.ok() && weights.status().code() == StatusCode::kCorrupt && !options.first_reading) {
      return Unavailable(std::string(kGenerationGone) +
                         ": its files were changed in place since they were opened: " + weights.status().message());
    }
    if (weights.ok() && (*weights)->bytes > source.info.resident_bytes) {
      return Internal("it holds " + std::to_string((*weights)->bytes) + " bytes, computed were " +
                      std::to_string(source.info.resident_bytes));
    }
    return weights;
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("no memory for its " + std::to_string(source.info.resident_bytes) + " bytes");
  }
}

Result<std::shared_ptr<const VariantWeights>> LoadVariantWeights(KernelContext& context, const BaseWeights& base,
                                                                 const std::string& directory) {
  DF_ASSIGN_OR_RETURN(const auto source, OpenVariant(base, directory, {.verify = false}));
  return PackVariant(context, base, *source, {.first_reading = true});
}

}  // namespace df
