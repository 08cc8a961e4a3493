#include <map>
#include <set>

#include "format/delta_dir.h"
#include "model/layer_names.h"
#include "model/weights.h"

namespace df {
namespace {

Buffer<float> ToBuffer(const TensorView& view, Arena* arena) {
  Buffer<float> values(view.elements(), arena);
  ReadFloats(view, 0, values.span());
  return values;
}

// The stored parts of one delta, checked and each with the place it goes to: nothing is packed yet. A part stands in
// the order of the weights' names, which is the order of the content digest.
struct BoundDelta {
  struct Part {
    LinearDelta change;  // of a matrix
    std::optional<TensorView> vector;
    kernels::PackedDelta* matrix_to = nullptr;
    Buffer<float>* vector_to = nullptr;
  };
  std::shared_ptr<VariantWeights> variant = std::make_shared<VariantWeights>();  // everything but its memory
  std::map<std::string, Part> parts;                                             // by weight name
};

// Finds the entries of one delta; remembers which names found a place.
class DeltaBinder {
 public:
  DeltaBinder(const DeltaDirectory& delta, BoundDelta& bound) : delta_(delta), bound_(bound) {}

  Status Linear(const std::string& weight, ShapeOfWeight base, size_t d_out, kernels::PackedDelta& to,
                const std::string& bias = "") {
    placed_.insert(weight);
    DF_ASSIGN_OR_RETURN(LinearDelta change, delta_.Linear(weight, base, d_out));
    if (!bias.empty()) {
      placed_.insert(bias);
      DF_ASSIGN_OR_RETURN(change.bias, delta_.Vector(bias, d_out));
    }
    to.d_out = change.d_out;
    to.d_in = change.d_in;
    if (!change.IsBase()) bound_.parts[weight] = {.change = std::move(change), .vector = {}, .matrix_to = &to};
    return Status::Ok();
  }

  Status Vector(const std::string& name, size_t size, Buffer<float>& to) {
    placed_.insert(name);
    DF_ASSIGN_OR_RETURN(const std::optional<TensorView> view, delta_.Vector(name, size));
    if (view) bound_.parts[name] = {.change = {}, .vector = view, .vector_to = &to};
    return Status::Ok();
  }

  Status Layer(const ModelConfig& config, size_t layer, LayerDelta& to) {
    for (size_t i = 0; i < kLinearSlots; ++i) {
      const auto slot = static_cast<LinearSlot>(i);
      const LinearDims dims = DimsOf(config, slot);
      DF_RETURN_IF_ERROR(Linear(WeightName(layer, slot), {dims.d_out, dims.d_in}, dims.d_out, to.linear[i],
                                HasBias(config, slot) ? BiasName(layer, slot) : ""));
    }
    for (size_t i = 0; i < kNormSlots; ++i) {
      const auto slot = static_cast<NormSlot>(i);
      const size_t size = SizeOf(config, slot);
      if (size != 0) DF_RETURN_IF_ERROR(Vector(NormName(layer, slot), size, to.norm[i]));
    }
    return Status::Ok();
  }

  // Nothing that can change an answer is dropped silently.
  Status CheckAllPlaced() const {
    for (const std::string& name : delta_.weights()) {
      if (!placed_.contains(name)) return Corrupt("delta changes " + name + ", which this model does not have");
    }
    return Status::Ok();
  }

 private:
  const DeltaDirectory& delta_;
  BoundDelta& bound_;
  std::set<std::string> placed_;
};

bool StoresHead(const DeltaDirectory& delta) {
  for (const std::string& name : delta.weights()) {
    if (name == kHeadName) return true;
  }
  return false;
}

Status BindHead(const BaseWeights& base, const DeltaDirectory& delta, DeltaBinder& binder, VariantWeights& variant) {
  const bool tied = VariantIsTied({base.tied, &base.config}, variant.config, StoresHead(delta));
  variant.head_on_embedding = tied || base.tied;
  if (tied) return Status::Ok();
  return binder.Linear(kHeadName, {base.config.vocab, base.config.d_model}, variant.config.vocab,
                       variant.head.emplace());
}

Result<BoundDelta> BindDelta(const BaseWeights& base, const DeltaDirectory& delta) {
  if (delta.metadata().base_fingerprint != base.fingerprint) {
    return FailedPrecondition("the delta in " + delta.directory() +
                              " was made for another base: it needs fingerprint " + delta.metadata().base_fingerprint +
                              ", this base has " + base.fingerprint);
  }
  DF_RETURN_IF_ERROR(CheckVariantConfig(base.config, delta.config()));
  BoundDelta bound;
  VariantWeights& variant = *bound.variant;
  variant.kind = VariantKind::kDelta;
  variant.config = delta.config();
  DeltaBinder binder(delta, bound);
  DF_RETURN_IF_ERROR(
      binder.Linear(kEmbeddingName, {base.config.vocab, base.config.d_model}, variant.config.vocab, variant.embedding));
  variant.layers.resize(base.config.n_layers);
  for (size_t layer = 0; layer < base.config.n_layers; ++layer) {
    DF_RETURN_IF_ERROR(binder.Layer(base.config, layer, variant.layers[layer]));
  }
  DF_RETURN_IF_ERROR(binder.Vector(kFinalNormName, base.config.d_model, variant.final_norm));
  DF_RETURN_IF_ERROR(BindHead(base, delta, binder, variant));
  DF_RETURN_IF_ERROR(binder.CheckAllPlaced());
  return bound;
}

size_t BytesOf(const BoundDelta::Part& part) {
  return part.vector ? part.vector->elements() * sizeof(float) : kernels::PackedBytes(part.change);
}

// Small buffers in pages of 4 KiB cost more than packing: a fault each, and clearing twice.
std::unique_ptr<Arena> ArenaFor(const BoundDelta& bound) {
  size_t n_bytes = 0;
  for (const auto& [weight, part] : bound.parts) {
    n_bytes += part.vector ? BytesOf(part) + kAlignment : kernels::ArenaBytes(part.change);
  }
  return std::make_unique<Arena>(n_bytes);
}

}  // namespace

void CountBytes(VariantWeights& variant) {
  variant.bytes = variant.embedding.owned_bytes() + variant.final_norm.owned_bytes();
  if (variant.head) variant.bytes += variant.head->owned_bytes();
  for (const LayerDelta& layer : variant.layers) {
    for (const kernels::PackedDelta& linear : layer.linear) variant.bytes += linear.owned_bytes();
    for (const Buffer<float>& norm : layer.norm) variant.bytes += norm.owned_bytes();
  }
}

Result<size_t> DeltaBytes(const BaseWeights& base, const DeltaDirectory& delta) {
  DF_ASSIGN_OR_RETURN(const BoundDelta bound, BindDelta(base, delta));
  size_t bytes = 0;
  for (const auto& [weight, part] : bound.parts) bytes += BytesOf(part);
  return bytes;
}

Result<std::shared_ptr<const VariantWeights>> LoadDelta(KernelContext& context, const BaseWeights& base,
                                                        const DeltaDirectory& delta, const LoadOptions& options) {
  DF_ASSIGN_OR_RETURN(const BoundDelta bound, BindDelta(base, delta));
  const std::shared_ptr<VariantWeights>& variant = bound.variant;
  variant->digest = options.digest;
  if (variant->digest.empty()) {
    DF_ASSIGN_OR_RETURN(variant->digest, delta.Generation());
  }
  Arena* arena = (variant->arena = ArenaFor(bound)).get();
  // One pass over the file: a weight's bytes are digested, packed while they are in the cache, and given back.
  DeltaDirectory::ContentCheck check(delta);
  for (const auto& [weight, part] : bound.parts) {
    check.ReadUpTo(weight);
    if (part.vector) {
      *part.vector_to = ToBuffer(*part.vector, arena);
    } else {
      *part.matrix_to = kernels::PackDelta(context, part.change, arena);
    }
    check.DropBehind();
    if (options.progress) DF_RETURN_IF_ERROR(options.progress(BytesOf(part)));
  }
  DF_RETURN_IF_ERROR(check.Finish());
  if (variant->config.rope != base.config.rope) {
    variant->rope = ComputeRopeFrequencies(variant->config.rope, variant->config.head_dim);
  }
  CountBytes(*variant);
  return std::shared_ptr<const VariantWeights>(variant);
}

}  // namespace df
