#include "model/layer_names.h"
#include "model/weights.h"

namespace df {
namespace {

// Reads slots of one checkpoint into packed form, giving mapped pages back behind itself; or refers to its matrices.
class BaseLoader {
 public:
  BaseLoader(KernelContext& context, const Checkpoint& checkpoint, WeightMemory memory)
      : context_(context), checkpoint_(checkpoint), memory_(memory) {}

  kernels::PackedWeight Matrix(const std::string& name) {
    const StoredTensor& stored = Find(name);
    if (memory_ == WeightMemory::kMapped) {
      stored.file->WillNeed(stored.view.bytes);
      bytes_ += stored.view.bytes.size();
      mapped_bytes_ += stored.view.bytes.size();
      return kernels::MapWeight(stored.view);
    }
    const auto release = [](void* file, Bytes part) { static_cast<const MappedFile*>(file)->DropPages(part); };
    kernels::PackedWeight packed =
        kernels::PackWeight(context_, stored.view, release, const_cast<MappedFile*>(stored.file));
    bytes_ += packed.bytes();
    return packed;
  }

  Buffer<float> Vector(const std::string& name) {
    const StoredTensor& stored = Find(name);
    Buffer<float> values(stored.view.elements());
    ReadFloats(stored.view, 0, values.span());
    bytes_ += values.size_bytes();
    return values;
  }

  LayerWeights Layer(size_t layer) {
    const ModelConfig& config = checkpoint_.config();
    LayerWeights weights;
    for (size_t i = 0; i < kLinearSlots; ++i) {
      const auto slot = static_cast<LinearSlot>(i);
      weights.linear[i].weight = Matrix(WeightName(layer, slot));
      if (HasBias(config, slot)) weights.linear[i].bias = Vector(BiasName(layer, slot));
    }
    for (size_t i = 0; i < kNormSlots; ++i) {
      const auto slot = static_cast<NormSlot>(i);
      if (SizeOf(config, slot) > 0) weights.norm[i] = Vector(NormName(layer, slot));
    }
    return weights;
  }

  size_t bytes() const { return bytes_; }
  size_t mapped_bytes() const { return mapped_bytes_; }

 private:
  // Bind has found every slot.
  const StoredTensor& Find(const std::string& name) {
    const StoredTensor* stored = checkpoint_.FindOrNull(name);
    DF_CHECK(stored != nullptr);
    return *stored;
  }

  KernelContext& context_;
  const Checkpoint& checkpoint_;
  const WeightMemory memory_;
  size_t bytes_ = 0;
  size_t mapped_bytes_ = 0;
};

}  // namespace

Status BaseWeights::CheckIntact() const {
  if (mapped == nullptr) return Status::Ok();
  const Status status = mapped->CheckIntact();
  return status.ok() ? status : Status(StatusCode::kIo, "base weights were lost: " + status.message());
}

Result<std::shared_ptr<const BaseWeights>> LoadBase(KernelContext& context, std::shared_ptr<const Checkpoint> owner,
                                                    WeightMemory memory) {
  const Checkpoint& checkpoint = *owner;
  DF_ASSIGN_OR_RETURN(const BoundCheckpoint bound, Bind(checkpoint));
  auto base = std::make_shared<BaseWeights>();
  base->config = checkpoint.config();
  base->tied = bound.tied;
  DF_ASSIGN_OR_RETURN(base->fingerprint, BaseFingerprint(checkpoint, bound));
  base->rope = ComputeRopeFrequencies(base->config.rope, base->config.head_dim);

  BaseLoader loader(context, checkpoint, memory);
  base->embedding.weight = loader.Matrix(kEmbeddingName);
  base->layers.reserve(base->config.n_layers);
  for (size_t layer = 0; layer < base->config.n_layers; ++layer) base->layers.push_back(loader.Layer(layer));
  base->final_norm = loader.Vector(kFinalNormName);
  if (!base->tied) base->head.weight = loader.Matrix(kHeadName);
  base->bytes = loader.bytes();
  base->mapped_bytes = loader.mapped_bytes();
  DF_RETURN_IF_ERROR(checkpoint.CheckIntact());
  if (memory == WeightMemory::kMapped) base->mapped = std::move(owner);
  return std::shared_ptr<const BaseWeights>(std::move(base));
}

}  // namespace df
