// A delta or adapter directory bound to its base: what becomes of every weight. For the offline commands; serving packs
// the same parts (model/weights.h).
#ifndef DELTAFOLD_CODEC_BOUND_VARIANT_H_
#define DELTAFOLD_CODEC_BOUND_VARIANT_H_

#include <memory>
#include <string>
#include <vector>

#include "format/delta_dir.h"
#include "format/peft_adapter.h"
#include "model/bind.h"

namespace df {

// One weight of the variant. A vector counts as one row: `change` then has d_out 1.
struct BoundWeight {
  Slot slot;                           // with the variant's rows
  const StoredTensor* base = nullptr;  // what `change` starts from; the embedding for the head of a tied base
  LinearDelta change;                  // empty: as in the base
};

// Exactly one of `delta` and `adapter` is set; the views in `weights` live as long as it, this and the base.
struct BoundVariant {
  std::shared_ptr<const DeltaDirectory> delta;
  std::shared_ptr<const PeftAdapter> adapter;
  AdapterChanges changes;             // of the adapter
  std::vector<Buffer<float>> biases;  // sums of a base's and an adapter's
  ModelConfig config;
  bool base_tied = false, tied = false;  // the head of the base, of the variant: its embedding
  std::vector<BoundWeight> weights;      // in the order of computation
};

// Opens `directory` and gives every stored part its place. The only errors are those of opening it, kFailedPrecondition
// (a delta made for another base), kCorrupt (a part without a place or of another shape, naming it) and kUnsupported (a
// lora_bias where the base has no bias: no checkpoint of this architecture could hold it).
Result<BoundVariant> BindVariant(const Checkpoint& base, const std::string& directory);

// The slots of a delta without its base: its own config tells them.
std::vector<Slot> SlotsOfDelta(const DeltaDirectory& delta);
// The change of one slot; `base_rows` as in DeltaDirectory::Linear.
Result<LinearDelta> ChangeOf(const DeltaDirectory& delta, const Slot& slot, size_t base_rows);
// kCorrupt naming the first entry that has no place among `slots`.
Status CheckAllPlaced(const DeltaDirectory& delta, const std::vector<Slot>& slots);

}  // namespace df

#endif  // DELTAFOLD_CODEC_BOUND_VARIANT_H_
