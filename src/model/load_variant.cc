#include <set>

#include "format/delta_dir.h"
#include "model/layer_names.h"
#include "model/weights.h"

namespace df {
namespace {

Buffer<float> ToBuffer(const TensorView& view) {
  Buffer<float> values(view.elements());
  ReadFloats(view, 0, values.span());
  return values;
}

// Reads the entries of one delta; remembers which names found a place.
class DeltaLoader {
 public:
  DeltaLoader(KernelContext& context, const DeltaDirectory& delta) : context_(context), delta_(delta) {}

  Result<kernels::PackedDelta> Linear(const std::string& weight, ShapeOfWeight base, size_t d_out,
                                      const std::string& bias = "") {
    placed_.insert(weight);
    DF_ASSIGN_OR_RETURN(LinearDelta change, delta_.Linear(weight, base, d_out));
    if (!bias.empty()) {
      placed_.insert(bias);
      DF_ASSIGN_OR_RETURN(change.bias, delta_.Vector(bias, d_out));
    }
    return kernels::PackDelta(context_, change);
  }

  Result<Buffer<float>> Vector(const std::string& name, size_t size) {
    placed_.insert(name);
    DF_ASSIGN_OR_RETURN(const std::optional<TensorView> view, delta_.Vector(name, size));
    return view ? ToBuffer(*view) : Buffer<float>();
  }

  Result<LayerDelta> Layer(const ModelConfig& config, size_t layer) {
    LayerDelta weights;
    for (size_t i = 0; i < kLinearSlots; ++i) {
      const auto slot = static_cast<LinearSlot>(i);
      const LinearDims dims = DimsOf(config, slot);
      DF_ASSIGN_OR_RETURN(weights.linear[i], Linear(WeightName(layer, slot), {dims.d_out, dims.d_in}, dims.d_out,
                                                    HasBias(config, slot) ? BiasName(layer, slot) : ""));
    }
    for (size_t i = 0; i < kNormSlots; ++i) {
      const auto slot = static_cast<NormSlot>(i);
      const size_t size = SizeOf(config, slot);
      if (size == 0) continue;
      DF_ASSIGN_OR_RETURN(weights.norm[i], Vector(NormName(layer, slot), size));
    }
    return weights;
  }

  // Nothing that can change an answer is dropped silently.
  Status CheckAllPlaced() const {
    for (const std::string& name : delta_.weights()) {
      if (!placed_.contains(name)) return Corrupt("delta changes " + name + ", which this model does not have");
    }
    return Status::Ok();
  }

 private:
  KernelContext& context_;
  const DeltaDirectory& delta_;
  std::set<std::string> placed_;
};

bool StoresHead(const DeltaDirectory& delta) {
  for (const std::string& name : delta.weights()) {
    if (name == kHeadName) return true;
  }
  return false;
}

Status LoadHead(const BaseWeights& base, const DeltaDirectory& delta, DeltaLoader& loader, VariantWeights& variant) {
  const bool tied = VariantIsTied({base.tied, &base.config}, variant.config, StoresHead(delta));
  variant.head_on_embedding = tied || base.tied;
  if (tied) return Status::Ok();
  DF_ASSIGN_OR_RETURN(variant.head,
                      loader.Linear(kHeadName, {base.config.vocab, base.config.d_model}, variant.config.vocab));
  return Status::Ok();
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

Result<std::shared_ptr<const VariantWeights>> LoadDelta(KernelContext& context, const BaseWeights& base,
                                                        const DeltaDirectory& delta) {
  if (delta.metadata().base_fingerprint != base.fingerprint) {
    return FailedPrecondition("delta " + delta.directory() + " was made for another base: it needs fingerprint " +
                              delta.metadata().base_fingerprint + ", this base has " + base.fingerprint);
  }
  DF_RETURN_IF_ERROR(CheckVariantConfig(base.config, delta.config()));
  auto variant = std::make_shared<VariantWeights>();
  variant->kind = VariantKind::kDelta;
  variant->config = delta.config();
  DF_ASSIGN_OR_RETURN(variant->digest, delta.Generation());

  DeltaLoader loader(context, delta);
  DF_ASSIGN_OR_RETURN(variant->embedding,
                      loader.Linear(kEmbeddingName, {base.config.vocab, base.config.d_model}, variant->config.vocab));
  for (size_t layer = 0; layer < base.config.n_layers; ++layer) {
    DF_ASSIGN_OR_RETURN(LayerDelta weights, loader.Layer(base.config, layer));
    variant->layers.push_back(std::move(weights));
  }
  DF_ASSIGN_OR_RETURN(variant->final_norm, loader.Vector(kFinalNormName, base.config.d_model));
  DF_RETURN_IF_ERROR(LoadHead(base, delta, loader, *variant));
  DF_RETURN_IF_ERROR(loader.CheckAllPlaced());
  if (variant->config.rope != base.config.rope) {
    variant->rope = ComputeRopeFrequencies(variant->config.rope, variant->config.head_dim);
  }
  CountBytes(*variant);
  DF_RETURN_IF_ERROR(delta.CheckIntact());
  return std::shared_ptr<const VariantWeights>(std::move(variant));
}

}  // namespace df
