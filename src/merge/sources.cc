#include "merge/sources.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <map>
#include <set>

#include "codec/decode.h"
#include "format/digest.h"
#include "format/served_files.h"
#include "format/variant_kind.h"

namespace df::merge {
namespace {

namespace fs = std::filesystem;

Status NeedsBase(const std::string& kind, const MergeSource* base) {
  return FailedPrecondition(
      "it is " + kind + (base == nullptr ? ", which needs a base_model" : ", and base_model is no full model") +
      ": name a full model as base_model" + (kind == "an adapter" ? ", or write model+adapter" : ""));
}

Result<MergeSource> OpenModel(const std::string& directory) {
  MergeSource source;
  DF_ASSIGN_OR_RETURN(source.checkpoint, Checkpoint::Open(directory));
  DF_ASSIGN_OR_RETURN(const BoundCheckpoint bound, Bind(*source.checkpoint));
  source.checkpoint_is_tied = bound.tied;
  return source;
}

Status AddVariant(MergeSource& source, const std::string& directory) {
  DF_ASSIGN_OR_RETURN(source.variant, BindVariant(*source.checkpoint, directory));
  source.variant_directory = directory;
  if (source.variant->delta != nullptr) return source.variant->delta->VerifyDigest();
  return Status::Ok();
}

// "model+adapter" in two, all else as it is; the name of a directory may have a '+' itself.
std::vector<std::string> PartsOf(const std::string& argument) {
  std::error_code error;
  const size_t plus = argument.rfind('+');
  const bool is_pair = plus != std::string::npos && plus > 0 && plus + 1 < argument.size();
  if (!is_pair || fs::is_directory(argument, error)) return {argument};
  return {argument.substr(0, plus), argument.substr(plus + 1)};
}

Result<MergeSource> OpenPair(const std::string& model, const std::string& adapter) {
  DF_ASSIGN_OR_RETURN(const std::string model_directory, ResolveModelDirectory(model));
  DF_ASSIGN_OR_RETURN(const std::string adapter_directory, ResolveModelDirectory(adapter));
  DF_ASSIGN_OR_RETURN(const DirectoryKind kind, KindOfDirectory(model_directory));
  if (kind != DirectoryKind::kModel) return FailedPrecondition("what stands before '+' is no full model");
  DF_ASSIGN_OR_RETURN(MergeSource source, OpenModel(model_directory));
  DF_RETURN_IF_ERROR(AddVariant(source, adapter_directory));
  return source;
}

// `base` null: there is none yet.
Result<MergeSource> Open(const std::string& argument, const MergeSource* base) {
  const std::vector<std::string> parts = PartsOf(argument);
  if (parts.size() == 2) return OpenPair(parts[0], parts[1]);
  DF_ASSIGN_OR_RETURN(const std::string directory, ResolveModelDirectory(argument));
  DF_ASSIGN_OR_RETURN(const DirectoryKind kind, KindOfDirectory(directory));
  const bool is_variant = kind == DirectoryKind::kDelta || kind == DirectoryKind::kAdapter;
  MergeSource source;
  if (is_variant) {
    if (base == nullptr || base->variant)
      return NeedsBase(kind == DirectoryKind::kDelta ? "a delta" : "an adapter", base);
    source.checkpoint = base->checkpoint;
    source.checkpoint_is_tied = base->checkpoint_is_tied;
    DF_RETURN_IF_ERROR(AddVariant(source, directory));
  } else {
    DF_ASSIGN_OR_RETURN(source, OpenModel(directory));
  }
  return source;
}

Result<MergeSource> OpenNamed(const std::string& argument, const MergeSource* base, const std::string& role) {
  Result<MergeSource> source = Open(argument, base);
  if (!source.ok()) return source.status().Annotate(role + " " + argument);
  source->argument = argument;
  source->name = argument;  // until all are open
  return source;
}

fs::path WholePath(const std::string& part) {
  std::error_code error;
  fs::path path = fs::absolute(part, error).lexically_normal();
  return path.has_filename() ? path : path.parent_path();  // "dir/" ends in an empty name
}

// The last components of the path of a directory; what is none is its own name.
std::string Tail(const std::string& part, size_t n_components) {
  std::error_code error;
  if (!fs::is_directory(part, error)) return part;
  const fs::path whole = WholePath(part);
  const auto n_all = static_cast<size_t>(std::distance(whole.begin(), whole.end()));
  if (n_components >= n_all) return whole.string();
  fs::path tail;
  for (auto at = std::next(whole.begin(), static_cast<ptrdiff_t>(n_all - n_components)); at != whole.end(); ++at) {
    tail /= *at;
  }
  return tail.string();
}

// Of each part a name that no other directory among them has: as much of the end of its path as that needs.
std::map<std::string, std::string> DistinctNames(const std::set<std::string>& parts) {
  std::map<std::string, std::string> names;
  std::map<std::string, size_t> lengths;
  for (const std::string& part : parts) names[part] = Tail(part, lengths[part] = 1);
  for (bool is_done = false; !is_done;) {
    std::set<std::string> alike;
    for (const auto& [a, a_name] : names) {
      for (const auto& [b, b_name] : names) {
        if (a_name == b_name && WholePath(a) != WholePath(b)) alike.insert(a);
      }
    }
    is_done = true;
    for (const std::string& part : alike) {
      std::string longer = Tail(part, ++lengths[part]);
      is_done = is_done && longer == names[part];
      names[part] = std::move(longer);
    }
  }
  return names;
}

void NameSources(MergeSources& sources) {
  std::vector<MergeSource*> all;
  if (sources.base) all.push_back(&*sources.base);
  for (MergeSource& model : sources.models) all.push_back(&model);
  std::set<std::string> parts;
  for (const MergeSource* source : all) {
    for (const std::string& part : PartsOf(source->argument)) parts.insert(part);
  }
  const std::map<std::string, std::string> names = DistinctNames(parts);
  for (MergeSource* source : all) {
    source->name.clear();
    for (const std::string& part : PartsOf(source->argument)) {
      source->name += (source->name.empty() ? "" : "+") + names.at(part);
    }
  }
}

const StoredTensor* StoredOf(const MergeSource& source, const Slot& slot) {
  const bool is_tied_head = slot.kind == SlotKind::kHead && source.checkpoint_is_tied;
  return source.checkpoint->FindOrNull(is_tied_head ? kEmbeddingName : slot.name);
}

const BoundWeight* WeightOrNull(const MergeSource& source, const std::string& name) {
  const auto& weights = source.variant->weights;
  const auto found = std::ranges::find(
      weights, name, [](const BoundWeight& weight) -> const std::string& { return weight.slot.name; });
  return found == weights.end() ? nullptr : &*found;
}

const BoundWeight& WeightOf(const MergeSource& source, const Slot& slot) {
  const bool is_tied_head = slot.kind == SlotKind::kHead && source.variant->tied;
  const BoundWeight* const weight = WeightOrNull(source, is_tied_head ? kEmbeddingName : slot.name);
  DF_CHECK(weight != nullptr);  // OpenSources compared the configs
  return *weight;
}

Result<TensorView> Decode(ThreadPool& pool, const BoundWeight& weight, Buffer<float>& memory) {
  const RowDecoder decoder(weight.base->view, weight.change);
  const size_t d_out = decoder.d_out(), d_in = decoder.d_in();
  if (memory.size() < d_out * d_in) memory = Buffer<float>(d_out * d_in);
  std::atomic<bool> is_finite{true};
  pool.ParallelFor(d_out, RowGrain(d_in), [&](size_t begin, size_t end, size_t /*thread*/) {
    for (size_t r = begin; r < end; ++r) {
      const std::span<float> row(memory.data() + r * d_in, d_in);
      decoder.Decode(r, row);
      // relaxed: ParallelFor itself orders the result before the look at it
      if (weight.change.magnitude && !std::isfinite(row[0])) is_finite.store(false, std::memory_order_relaxed);
    }
  });
  if (!is_finite.load(std::memory_order_relaxed)) {
    return Corrupt("tensor " + weight.slot.name + ": use_dora scales a row that has no length");
  }
  return TensorView{DType::kF32, weight.slot.IsVector() ? Shape{d_in} : Shape{d_out, d_in},
                    AsBytes(std::span<const float>(memory.data(), d_out * d_in))};
}

const StoredTensor& MappedOf(const MergeSource& source, const Slot& slot) {
  return source.variant ? *WeightOf(source, slot).base : *StoredOf(source, slot);
}

}  // namespace

std::string NameForPeople(const std::string& argument) {
  std::error_code error;
  return fs::is_directory(argument, error) ? WholePath(argument).filename().string() : argument;
}

Result<MergeSources> OpenSources(const Recipe& recipe) {
  MergeSources sources;
  if (recipe.base_model) {
    DF_ASSIGN_OR_RETURN(sources.base, OpenNamed(*recipe.base_model, nullptr, "base_model"));
  }
  const MergeSource* const base = sources.base ? &*sources.base : nullptr;
  for (const RecipeModel& model : recipe.models) {
    DF_ASSIGN_OR_RETURN(sources.models.emplace_back(), OpenNamed(model.model, base, "model"));
  }
  NameSources(sources);
  const MergeSource& pattern = sources.pattern();
  for (const MergeSource& model : sources.models) {
    const Status fits = CheckVariantConfig(pattern.config(), model.config());
    if (fits.ok()) continue;
    return FailedPrecondition("model " + model.name + " cannot be merged with " + pattern.name + ": " + fits.message());
  }
  return sources;
}

std::vector<Slot> SlotsOfMerge(const MergeSources& sources) {
  bool tied = !sources.base || sources.base->IsTied();
  for (const MergeSource& model : sources.models) tied = tied && model.IsTied();
  return ListSlots(sources.pattern().config(), tied);
}

Result<TensorView> ReadTensor(ThreadPool& pool, const MergeSource& source, const Slot& slot, Buffer<float>& memory) {
  if (!source.variant) return StoredOf(source, slot)->view;
  const BoundWeight& weight = WeightOf(source, slot);
  if (weight.change.IsBase() && MatrixRows(weight.base->view) == weight.change.d_out) return weight.base->view;
  return Decode(pool, weight, memory);
}

void DropTensor(const MergeSource& source, const Slot& slot) {
  const StoredTensor& stored = MappedOf(source, slot);
  stored.file->DropPages(stored.view.bytes);
}

void AnnounceTensor(const MergeSource& source, const Slot& slot) {
  const StoredTensor& stored = MappedOf(source, slot);
  stored.file->WillNeed(stored.view.bytes);
}

Status CheckIntact(const MergeSources& sources) {
  const auto check = [](const MergeSource& source) -> Status {
    DF_RETURN_IF_ERROR(source.checkpoint->CheckIntact());
    if (!source.variant) return Status::Ok();
    if (source.variant->delta != nullptr) return source.variant->delta->CheckIntact();
    return source.variant->adapter->file().file().CheckIntact();
  };
  if (sources.base) DF_RETURN_IF_ERROR(check(*sources.base));
  for (const MergeSource& model : sources.models) DF_RETURN_IF_ERROR(check(model));
  return Status::Ok();
}

Result<Json> IdentityOf(const MergeSources& sources) {
  const auto identity = [](const MergeSource& source) -> Result<Json> {
    DF_ASSIGN_OR_RETURN(const std::string files, FilesIdentity(*source.checkpoint));
    Digest text;
    for (const std::string& directory : {source.own_directory(), source.checkpoint_directory()}) {
      DF_RETURN_IF_ERROR(AddServedFiles(directory, text).status());
    }
    Json json = {{"model", source.argument}, {"files", files}, {"text", text.Hex()}};
    if (!source.variant) return json;
    if (source.variant->delta != nullptr) {
      DF_ASSIGN_OR_RETURN(json["delta"], source.variant->delta->Generation());
    } else {
      DF_ASSIGN_OR_RETURN(json["adapter"], source.variant->adapter->Digest());
    }
    return json;
  };
  Json list = Json::array();
  if (sources.base) {
    DF_ASSIGN_OR_RETURN(list.emplace_back(), identity(*sources.base));
  }
  for (const MergeSource& model : sources.models) {
    DF_ASSIGN_OR_RETURN(list.emplace_back(), identity(model));
  }
  return list;
}

}  // namespace df::merge
