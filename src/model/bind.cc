#include "model/bind.h"

#include <algorithm>
#include <cstring>
#include <unordered_set>

#include "model/layer_names.h"

namespace df {
namespace {

std::string Describe(const Slot& slot) {
  return slot.IsVector() ? ToString(Shape{slot.d_out}) : ToString(Shape{slot.d_out, slot.d_in});
}

Status CheckTensor(const Slot& slot, const StoredTensor* stored) {
  if (stored == nullptr) {
    return Corrupt("tensor " + slot.name + " is missing; the config needs it with shape " + Describe(slot));
  }
  const TensorView& view = stored->view;
  const Shape expected = slot.IsVector() ? Shape{slot.d_out} : Shape{slot.d_out, slot.d_in};
  if (view.shape != expected) {
    return Corrupt("tensor " + slot.name + " has shape " + ToString(view.shape) + ", the config needs " +
                   ToString(expected));
  }
  if (!IsWeightDType(view.dtype)) {
    return Unsupported("tensor " + slot.name + " has dtype " + std::string(DTypeName(view.dtype)) +
                       "; weights must be BF16, F16 or F32");
  }
  return Status::Ok();
}

// Buffers that old checkpoints stored and that are derived from the config.
bool IsDerivedBuffer(const std::string& name) { return name.ends_with(".rotary_emb.inv_freq"); }

bool SameContent(const TensorView& a, const TensorView& b) {
  return a.dtype == b.dtype && a.shape == b.shape && std::memcmp(a.bytes.data(), b.bytes.data(), a.bytes.size()) == 0;
}

// A head stored beside a tied embedding counts only where it differs from it (80-reference facts: the stored head
// wins).
bool IsTied(const Checkpoint& checkpoint) {
  if (!checkpoint.config().tied_head) return false;
  const StoredTensor* head = checkpoint.FindOrNull(kHeadName);
  const StoredTensor* embedding = checkpoint.FindOrNull(kEmbeddingName);
  return head == nullptr || embedding == nullptr || SameContent(head->view, embedding->view);
}

void AppendLayerSlots(const ModelConfig& config, size_t layer, std::vector<Slot>& slots) {
  for (size_t i = 0; i < kLinearSlots; ++i) {
    const auto slot = static_cast<LinearSlot>(i);
    const LinearDims dims = DimsOf(config, slot);
    slots.push_back({WeightName(layer, slot), SlotKind::kMatrix, dims.d_out, dims.d_in});
    if (HasBias(config, slot)) slots.push_back({BiasName(layer, slot), SlotKind::kVector, dims.d_out, 1});
  }
  for (size_t i = 0; i < kNormSlots; ++i) {
    const auto slot = static_cast<NormSlot>(i);
    const size_t size = SizeOf(config, slot);
    if (size > 0) slots.push_back({NormName(layer, slot), SlotKind::kVector, size, 1});
  }
}

}  // namespace

std::vector<Slot> ListSlots(const ModelConfig& config, bool tied) {
  std::vector<Slot> slots;
  slots.push_back({kEmbeddingName, SlotKind::kEmbedding, config.vocab, config.d_model});
  for (size_t layer = 0; layer < config.n_layers; ++layer) AppendLayerSlots(config, layer, slots);
  slots.push_back({kFinalNormName, SlotKind::kVector, config.d_model, 1});
  if (!tied) slots.push_back({kHeadName, SlotKind::kHead, config.vocab, config.d_model});
  return slots;
}

std::string ModuleOf(const std::string& tensor) { return tensor.substr(0, tensor.rfind('.')); }

std::vector<BaseModule> ListModules(const ModelConfig& config) {
  std::vector<BaseModule> modules;
  const auto add_norm = [&modules](const std::string& weight, size_t size) {
    modules.push_back({.path = ModuleOf(weight), .d_out = size, .d_in = 1, .kind = ModuleKind::kNorm});
  };
  const auto add_table = [&modules, &config](const std::string& weight, ModuleKind kind) {
    modules.push_back({.path = ModuleOf(weight), .d_out = config.vocab, .d_in = config.d_model, .kind = kind});
  };
  add_table(kEmbeddingName, ModuleKind::kEmbedding);
  for (size_t layer = 0; layer < config.n_layers; ++layer) {
    for (size_t i = 0; i < kLinearSlots; ++i) {
      const auto slot = static_cast<LinearSlot>(i);
      const LinearDims dims = DimsOf(config, slot);
      modules.push_back({.path = ModuleName(layer, slot),
                         .d_out = dims.d_out,
                         .d_in = dims.d_in,
                         .kind = ModuleKind::kLinear,
                         .has_bias = HasBias(config, slot)});
    }
    for (size_t i = 0; i < kNormSlots; ++i) {
      const auto slot = static_cast<NormSlot>(i);
      if (SizeOf(config, slot) > 0) add_norm(NormName(layer, slot), SizeOf(config, slot));
    }
  }
  add_norm(kFinalNormName, config.d_model);
  add_table(kHeadName, ModuleKind::kHead);
  return modules;
}

std::vector<BaseModule> ListLinearModules(const ModelConfig& config) {
  std::vector<BaseModule> modules = ListModules(config);
  std::erase_if(modules, [](const BaseModule& module) { return module.kind != ModuleKind::kLinear; });
  return modules;
}

bool VariantIsTied(const BoundBase& base, const ModelConfig& variant, bool stores_head) {
  if (!variant.tied_head || stores_head) return false;
  if (base.tied) return true;
  // The base's stored head beat its config; a variant with the same config and no head of its own keeps that head.
  return !base.config->tied_head;
}

Result<BoundCheckpoint> Bind(const Checkpoint& checkpoint) {
  const ModelConfig& config = checkpoint.config();
  // Each layer has at least seven tensors: a config that claims more layers than the files can hold is refused before
  // anything is sized by it.
  if (config.n_layers > checkpoint.names().size()) {
    return Corrupt("config says " + std::to_string(config.n_layers) + " layers, the checkpoint has only " +
                   std::to_string(checkpoint.names().size()) + " tensors");
  }
  BoundCheckpoint bound;
  bound.tied = IsTied(checkpoint);
  bound.slots = ListSlots(config, bound.tied);
  std::unordered_set<std::string_view> read;
  for (const Slot& slot : bound.slots) {
    DF_RETURN_IF_ERROR(CheckTensor(slot, checkpoint.FindOrNull(slot.name)));
    read.insert(slot.name);
  }
  for (const std::string& name : checkpoint.names()) {
    if (read.contains(name) || IsDerivedBuffer(name) || (bound.tied && name == kHeadName)) continue;
    return Unsupported("tensor " + name + " has no place in a " + config.model_type + " model with this config");
  }
  return bound;
}

Result<std::string> BaseFingerprint(const Checkpoint& checkpoint, const BoundCheckpoint& bound) {
  std::vector<std::string> names;
  names.reserve(bound.slots.size());
  for (const Slot& slot : bound.slots) names.push_back(slot.name);
  return Fingerprint(checkpoint, std::move(names));
}

}  // namespace df
