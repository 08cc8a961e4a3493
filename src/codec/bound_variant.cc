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

Result<BoundVariant> BindAdapter(const Checkpoint& base, const BoundCheckpoint& bound, const std::string& directory) {
  BoundVariant variant;
  DF_ASSIGN_OR_RETURN(variant.adapter, PeftAdapter::Open(directory));
  DF_ASSIGN_OR_RETURN(const auto pairs, variant.adapter->Bind(ListLinearModules(base.config())));
  variant.config = base.config();
  variant.tied = bound.tied;
  for (const Slot& slot : bound.slots) {
    LinearDelta change;
    change.d_out = slot.IsVector() ? 1 : slot.d_out;
    change.d_in = slot.IsVector() ? slot.d_out : slot.d_in;
    constexpr std::string_view kWeight = ".weight";
    const std::string module = slot.name.substr(0, slot.name.size() - std::min(slot.name.size(), kWeight.size()));
    const auto pair = pairs.find(module);
    if (slot.kind == SlotKind::kMatrix && pair != pairs.end()) change.low_rank.push_back(pair->second);
    variant.weights.push_back({slot, base.FindOrNull(slot.name), std::move(change)});
  }
  return variant;
}

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
    case DirectoryKind::kAdapter: return BindAdapter(base, *bound, directory);
    case DirectoryKind::kModel:
    case DirectoryKind::kNothing: break;
  }
  return NotFound(directory + " has neither delta_config.json nor adapter_config.json: it is no delta and no adapter");
}

}  // namespace df
