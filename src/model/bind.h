// The only place that knows tensor names: which tensors an architecture reads, their shapes, and whether a checkpoint
// has them.
#ifndef DELTAFOLD_MODEL_BIND_H_
#define DELTAFOLD_MODEL_BIND_H_

#include <string>
#include <vector>

#include "base/status.h"
#include "format/base_module.h"
#include "format/checkpoint.h"
#include "format/model_config.h"

namespace df {

enum class SlotKind { kEmbedding, kHead, kMatrix, kVector };

// One tensor that the computation reads.
struct Slot {
  std::string name;  // "model.layers.3.mlp.up_proj.weight"
  SlotKind kind = SlotKind::kMatrix;
  size_t d_out = 0;  // rows; elements for a vector
  size_t d_in = 0;   // columns; 1 for a vector

  bool IsVector() const { return kind == SlotKind::kVector; }
};

inline constexpr char kEmbeddingName[] = "model.embed_tokens.weight";
inline constexpr char kHeadName[] = "lm_head.weight";
inline constexpr char kFinalNormName[] = "model.norm.weight";

// All slots in the order of computation; the head only when `tied` is false.
std::vector<Slot> ListSlots(const ModelConfig& config, bool tied);

// All modules that an adapter may change, the head too where it is tied.
std::vector<BaseModule> ListModules(const ModelConfig& config);
// The projections of the layers alone.
std::vector<BaseModule> ListLinearModules(const ModelConfig& config);
// The module of a weight or bias: its name up to the last dot.
std::string ModuleOf(const std::string& tensor);

struct BoundCheckpoint {
  bool tied = false;        // after a look at the stored head: one that differs from the embedding unties
  std::vector<Slot> slots;  // every one is present with this shape and a float dtype
};

// Whether a variant's head is its own embedding. `base.tied` is what Bind found. A delta stores `lm_head.weight` (coded
// against the base's head, or against its embedding when the base is tied) whenever this rule, asked without it, is
// wrong.
struct BoundBase {
  bool tied = false;
  const ModelConfig* config = nullptr;
};
bool VariantIsTied(const BoundBase& base, const ModelConfig& variant, bool stores_head);

// Checks a checkpoint against its config: kCorrupt naming the first tensor that is absent or has the wrong shape or
// dtype (expected and found), kUnsupported for a tensor that nothing would read. Old checkpoints' rotary inv_freq are
// ignored.
Result<BoundCheckpoint> Bind(const Checkpoint& checkpoint);

// base_fingerprint of a delta: XXH3-128 over the slots' tensors.
Result<std::string> BaseFingerprint(const Checkpoint& checkpoint, const BoundCheckpoint& bound);

}  // namespace df

#endif  // DELTAFOLD_MODEL_BIND_H_
