// The weights of a fine-tune, each with what stands for it in the base: what there is to compress.
#ifndef DELTAFOLD_CODEC_WEIGHT_TASK_H_
#define DELTAFOLD_CODEC_WEIGHT_TASK_H_

#include <optional>
#include <vector>

#include "codec/codec.h"
#include "codec/compressor.h"
#include "format/checkpoint.h"
#include "model/bind.h"

namespace df {

// Views live as long as the checkpoints.
struct WeightTask {
  Slot slot;
  const StoredTensor* base = nullptr;
  const StoredTensor* fine_tune = nullptr;
  bool must_be_stored = false;  // an absent entry would be read as something else

  WeightPair pair() const { return {slot.name, base->view, fine_tune->view}; }
  // Gives back the mapped pages of both.
  void DropPages() const {
    base->file->DropPages(base->view.bytes);
    fine_tune->file->DropPages(fine_tune->view.bytes);
  }
};

// In the order of computation, the head last. `bound_base` is what Bind found. The only errors are those of Bind and
// kFailedPrecondition: a tensor that is missing or has another shape, by name.
Result<std::vector<WeightTask>> ListTasks(const Checkpoint& base, const BoundCheckpoint& bound_base,
                                          const Checkpoint& fine_tune);

// The code that `options` asks for; nothing: it is to be chosen.
const std::optional<Code>& GivenCode(SlotKind kind, const CompressOptions& options);

}  // namespace df

#endif  // DELTAFOLD_CODEC_WEIGHT_TASK_H_
