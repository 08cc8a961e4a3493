#include "merge/plan.h"

#include <algorithm>

#include "codec/full_checkpoint.h"
#include "model/layer_names.h"

namespace df::merge {
namespace {

// mergekit's t: 0 at the embedding and in the first layer, 1 in the last, behind it, and in a model of one layer.
double DepthOf(const Slot& slot, size_t n_layers) {
  const std::optional<size_t> layer = LayerOf(slot.name);
  if (!layer) return slot.kind == SlotKind::kEmbedding ? 0 : 1;
  return n_layers > 1 ? static_cast<double>(*layer) / static_cast<double>(n_layers - 1) : 1;
}

// As the pattern stores it; a tied pattern's head as its embedding.
DType StoredDType(const MergeSource& pattern, const Slot& slot) {
  const bool is_tied_head = slot.kind == SlotKind::kHead && pattern.checkpoint_is_tied;
  const StoredTensor* const stored = pattern.checkpoint->FindOrNull(is_tied_head ? kEmbeddingName : slot.name);
  DF_CHECK(stored != nullptr);  // bound when it was opened
  return stored->view.dtype;
}

TensorSpec SpecOf(const OutputTensor& tensor) {
  return {tensor.slot.name, tensor.dtype,
          tensor.slot.IsVector() ? Shape{tensor.slot.d_out} : Shape{tensor.slot.d_out, tensor.slot.d_in}};
}

void PlaceInShards(uint64_t max_shard_bytes, MergePlan& plan) {
  std::vector<std::vector<OutputTensor*>> shards;
  uint64_t shard_bytes = 0;
  for (OutputTensor& tensor : plan.tensors) {
    if (shards.empty() || shard_bytes + tensor.bytes() > max_shard_bytes) {
      shards.emplace_back();
      shard_bytes = 0;
    }
    shards.back().push_back(&tensor);
    shard_bytes += tensor.bytes();
  }
  for (size_t i = 0; i < shards.size(); ++i) {
    // Largest elements first, so that every tensor is aligned when mapped; else as they are computed.
    std::ranges::sort(shards[i], [](const OutputTensor* a, const OutputTensor* b) {
      const size_t a_bytes = DTypeBytes(a->dtype), b_bytes = DTypeBytes(b->dtype);
      return a_bytes != b_bytes ? a_bytes > b_bytes : a < b;  // of one array
    });
    OutputShard& shard = plan.shards.emplace_back();
    shard.file_name = ShardFileName(i, shards.size());
    for (size_t place = 0; place < shards[i].size(); ++place) {
      shards[i][place]->shard = i;
      shards[i][place]->place = place;
      shard.specs.push_back(SpecOf(*shards[i][place]));
    }
  }
}

uint64_t BytesRead(const MergeSource& source, const Slot& slot) {
  const bool is_tied_head = slot.kind == SlotKind::kHead && source.checkpoint_is_tied;
  const StoredTensor* const stored = source.checkpoint->FindOrNull(is_tied_head ? kEmbeddingName : slot.name);
  return stored == nullptr ? 0 : stored->view.bytes.size();
}

// What the sources' rows take that are matched by token.
uint64_t MatchedBytes(const MergePlan& plan, const MergeSources& sources) {
  if (plan.vocabulary.row_of.empty()) return 0;
  std::vector<MatchSource> matched;
  const auto add = [&](const MergeSource& source) {
    const DType stored = source.checkpoint->FindOrNull(kEmbeddingName)->view.dtype;  // bound when it was opened
    matched.push_back({source.variant ? DType::kF32 : stored, source.config().vocab});
  };
  if (sources.base) add(*sources.base);
  for (const MergeSource& model : sources.models) add(model);
  const MatchOptions options{.has_base = sources.base.has_value(), .makes_base = plan.method->needs_base};
  uint64_t element_bytes = 0;
  for (const std::optional<DType>& type : MatchedTypes(plan.vocabulary, options, matched)) {
    element_bytes += type ? DTypeBytes(*type) : 0;
  }
  return element_bytes * plan.vocabulary.rows * plan.tensors.front().slot.d_in;
}

// What holds tensors in f32: those made of a delta or matched by token, and a method's own.
uint64_t MemoryOf(const MergePlan& plan, const MergeSources& sources) {
  uint64_t largest = 0, largest_vocabulary = 0;
  for (const OutputTensor& tensor : plan.tensors) {
    uint64_t& most = tensor.IsOfVocabulary() ? largest_vocabulary : largest;
    most = std::max(most, uint64_t{tensor.elements()} * sizeof(float));
  }
  size_t n_made = sources.base && sources.base->variant ? 1 : 0;
  for (const MergeSource& model : sources.models) n_made += model.variant ? 1 : 0;
  const bool is_elementwise = plan.method->name == "linear" || plan.method->name == "task_arithmetic" ||
                              plan.method->name.starts_with("dare") || plan.method->name == "slerp";
  const uint64_t own =
      is_elementwise ? 0 : sources.models.size() + 3 + (plan.method->has_second_pass ? 1 : 0);  // what is kept for it
  const uint64_t of_vocabulary = (n_made + own) * largest_vocabulary + MatchedBytes(plan, sources);
  return std::max((n_made + own) * largest, of_vocabulary);
}

}  // namespace

Result<MergePlan> PlanMerge(const Recipe& recipe, const MergeSources& sources, uint64_t max_shard_bytes) {
  MergePlan plan;
  plan.method = FindMethodOrNull(recipe.method);
  DF_CHECK(plan.method != nullptr);
  DF_ASSIGN_OR_RETURN(plan.vocabulary, PlanVocabulary(recipe, sources));
  const MergeSource& pattern = sources.pattern();
  for (Slot& slot : SlotsOfMerge(sources)) {
    OutputTensor& tensor = plan.tensors.emplace_back();
    const DType stored = StoredDType(pattern, slot);
    tensor.dtype = recipe.out_dtype.value_or(stored);
    tensor.slot = std::move(slot);
    if (tensor.IsOfVocabulary()) tensor.slot.d_out = plan.vocabulary.rows;
    const double depth = DepthOf(tensor.slot, pattern.config().n_layers);
    DF_ASSIGN_OR_RETURN(tensor.settings, SettingsFor(recipe, tensor.slot.name, depth));
    plan.written_bytes += tensor.bytes();
    if (sources.base && plan.method->needs_base) plan.read_bytes += BytesRead(*sources.base, tensor.slot);
    for (const MergeSource& model : sources.models) plan.read_bytes += BytesRead(model, tensor.slot);
  }
  plan.tied = plan.tensors.back().slot.kind != SlotKind::kHead;
  PlaceInShards(max_shard_bytes, plan);
  plan.memory_bytes = MemoryOf(plan, sources);
  return plan;
}

}  // namespace df::merge
