#include "codec/bound_variant.h"

#include <algorithm>
#include <unordered_set>

#include "codec/codec.h"
#include "format/variant_kind.h"

namespace df {
namespace {

bool StoresHead(const DeltaDirectory& delta) {
  return std::ranges::binary_search(delta.weights(), std::string(kHeadName));
}

const StoredTensor* BaseTensor(const Checkpoint& base, bool base_tied, const Slot& slot) {
  return base.FindOrNull(base_tied && slot.kind == SlotKind::kHead ? kEmbeddingName : slot.name);
}

Result<BoundVariant> BindDelta(const Checkpoint& base, const BoundCheckpoint& bound, const std::string& directory) {
  BoundVariant variant;
  DF_ASSIGN_OR_RETURN(variant.delta, DeltaDirectory::Open(directory));
  DF_ASSIGN_OR_RETURN(const std::string fingerprint, BaseFingerprint(base, bound));
  if (variant.delta->metadata().base_fingerprint != fingerprint) {
    return FailedPrecondition("the delta was made for another base: it needs fingerprint " +
                              variant.delta->metadata().base_fingerprint + ", this base has " + fingerprint);
  }
  variant.config = variant.delta->config();
  DF_RETURN_IF_ERROR(CheckVariantConfig(base.config(), variant.config));
  variant.base_tied = bound.tied;
  variant.tied = VariantIsTied({bound.tied, &base.config()}, variant.config, StoresHead(*variant.delta));
  const std::vector<Slot> slots = ListSlots(variant.config, variant.tied);
  DF_RETURN_IF_ERROR(CheckAllPlaced(*variant.delta, slots));
  for (const Slot& slot : slots) {
    const StoredTensor* stored = BaseTensor(base, bound.tied, slot);
    if (stored == nullptr) return Corrupt("the base has no tensor " + slot.name + ", which the variant's config needs");
    DF_ASSIGN_OR_RETURN(LinearDelta change, ChangeOf(*variant.delta, slot, MatrixRows(stored->view)));
    variant.weights.push_back({slot, stored, std::move(change)});
  }
  return variant;
}

// An adapter on its base, slot by slot.
class AdapterBinding {
 public:
  AdapterBinding(const Checkpoint& base, bool base_tied) : base_(base), base_tied_(base_tied) {}

  Result<BoundVariant> Bind(const std::string& directory) {
    DF_ASSIGN_OR_RETURN(variant_.adapter, PeftAdapter::Open(directory));
    DF_ASSIGN_OR_RETURN(variant_.changes, variant_.adapter->Bind(ListModules(base_.config())));
    const ModuleChange* embedding = ChangeOrNull(kEmbeddingName);
    const ModuleChange* head = ChangeOrNull(kHeadName);
    variant_.config = base_.config();
    if (embedding != nullptr) variant_.config.vocab = embedding->weight.d_out;
    variant_.base_tied = base_tied_;
    variant_.tied = base_tied_ && StaysTied(embedding, head);
    for (const Slot& slot : ListSlots(variant_.config, variant_.tied)) DF_RETURN_IF_ERROR(BindSlot(slot));
    return std::move(variant_);
  }

 private:
  const ModuleChange* ChangeOrNull(const std::string& tensor) const {
    const auto found = variant_.changes.modules.find(ModuleOf(tensor));
    return found != variant_.changes.modules.end() ? &found->second : nullptr;
  }

  // A low rank or another matrix on one of the two unties them; new token rows are both's.
  static bool StaysTied(const ModuleChange* embedding, const ModuleChange* head) {
    if (head != nullptr) return embedding != nullptr && ChangeAlike(*embedding, *head);
    return embedding == nullptr || (embedding->weight.low_rank.empty() && !embedding->weight.raw);
  }

  Status BindSlot(const Slot& slot) {
    const StoredTensor* stored = BaseTensor(base_, base_tied_, slot);
    BoundWeight weight = {.slot = slot, .base = stored, .change = {}};
    weight.change.d_out = slot.IsVector() ? 1 : slot.d_out;
    weight.change.d_in = slot.IsVector() ? slot.d_out : slot.d_in;
    const ModuleChange* change = ChangeOrNull(slot.name);
    const bool is_bias = slot.name.ends_with(".bias");
    if (change != nullptr && is_bias) {
      weight.change.raw = BiasOf(*change, stored->view);
    } else if (change != nullptr) {
      if (change->added_bias && base_.FindOrNull(ModuleOf(slot.name) + ".bias") == nullptr) {
        return Unsupported("adapter field \"lora_bias\": module " + ModuleOf(slot.name) +
                           " of the base has no bias to add to, and a checkpoint of this architecture holds none");
      }
      weight.change = change->weight;
      weight.change.bias.reset();
    }
    if (slot.kind == SlotKind::kHead) {
      if (weight.change.d_out != slot.d_out) {
        return Corrupt("the adapter leaves an embedding of " + std::to_string(slot.d_out) + " tokens and a head of " +
                       std::to_string(weight.change.d_out));
      }
      AddTiedRows(weight.change);
    }
    variant_.weights.push_back(std::move(weight));
    return Status::Ok();
  }

  // New token rows of an embedding are a tied head's too.
  void AddTiedRows(LinearDelta& head) const {
    const ModuleChange* embedding = ChangeOrNull(kEmbeddingName);
    if (base_tied_ && embedding != nullptr && embedding->weight.rows && !head.rows) head.rows = embedding->weight.rows;
  }

  std::optional<TensorView> BiasOf(const ModuleChange& change, const TensorView& base) {
    if (!change.added_bias) return change.weight.bias;
    Buffer<float>& sum = variant_.biases.emplace_back(base.elements());
    ReadFloats(change.weight.bias.value_or(base), 0, sum.span());
    for (size_t i = 0; i < sum.size(); ++i) {
      sum[i] += change.weight.low_rank.front().scale * FloatAt(*change.added_bias, i);
    }
    return TensorView{DType::kF32, {sum.size()}, AsBytes(std::span<const float>(sum.span()))};
  }

  const Checkpoint& base_;
  const bool base_tied_;
  BoundVariant variant_;
};

}  // namespace

std::vector<Slot> SlotsOfDelta(const DeltaDirectory& delta) {
  // Without the base a tied config with no stored head is read as tied; a list too short by an unchanged head harms
  // nobody.
  return ListSlots(delta.config(), delta.config().tied_head && !StoresHead(delta));
}

Result<LinearDelta> ChangeOf(const DeltaDirectory& delta, const Slot& slot, size_t base_rows) {
  if (!slot.IsVector()) return delta.Linear(slot.name, {base_rows, slot.d_in}, slot.d_out);
  LinearDelta change;
  change.d_out = 1;
  change.d_in = slot.d_out;
  DF_ASSIGN_OR_RETURN(change.raw, delta.Vector(slot.name, slot.d_out));
  return change;
}

Status CheckAllPlaced(const DeltaDirectory& delta, const std::vector<Slot>& slots) {
  std::unordered_set<std::string_view> known;
  for (const Slot& slot : slots) known.insert(slot.name);
  for (const std::string& name : delta.weights()) {
    if (!known.contains(name)) return Corrupt("the delta changes " + name + ", which this model does not have");
  }
  return Status::Ok();
}

Result<BoundVariant> BindVariant(const Checkpoint& base, const std::string& directory) {
  Result<BoundCheckpoint> bound = Bind(base);
  if (!bound.ok()) return bound.status().Annotate("base");
  DF_ASSIGN_OR_RETURN(const DirectoryKind kind, KindOfDirectory(directory));
  switch (kind) {
    case DirectoryKind::kDelta: return BindDelta(base, *bound, directory);
    case DirectoryKind::kAdapter: return AdapterBinding(base, bound->tied).Bind(directory);
    case DirectoryKind::kModel:
    case DirectoryKind::kNothing: break;
  }
  return NotFound(directory + " has neither delta_config.json nor adapter_config.json: it is no delta and no adapter");
}

}  // namespace df
