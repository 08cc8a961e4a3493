#include "codec/weight_task.h"

namespace df {
namespace {

// The tensor of `name` in the base; the embedding stands in for a head that a tied base does not have.
const StoredTensor* BaseTensor(const Checkpoint& base, bool base_tied, const std::string& name) {
  return base.FindOrNull(base_tied && name == kHeadName ? kEmbeddingName : name);
}

// A head that a delta has to hold since a reader would take another one without it.
void AddHead(const Checkpoint& base, const BoundCheckpoint& bound_base, const Checkpoint& fine_tune, bool tied,
             std::vector<WeightTask>& tasks) {
  const bool read_as_tied = VariantIsTied({bound_base.tied, &base.config()}, fine_tune.config(), false);
  if (tied && read_as_tied) return;
  WeightTask task;
  task.slot = {kHeadName, SlotKind::kHead, fine_tune.config().vocab, fine_tune.config().d_model};
  task.base = BaseTensor(base, bound_base.tied, kHeadName);
  task.fine_tune = fine_tune.FindOrNull(tied ? kEmbeddingName : kHeadName);
  task.must_be_stored = read_as_tied;
  tasks.push_back(std::move(task));
}

Status CheckShapes(const WeightTask& task) {
  if (task.base == nullptr || task.fine_tune == nullptr) {
    return FailedPrecondition("tensor " + task.slot.name + " is missing in the " +
                              (task.base == nullptr ? "base" : "fine-tune") + ": this is not a fine-tune of that base");
  }
  const Shape& base = task.base->view.shape;
  const Shape& fine_tune = task.fine_tune->view.shape;
  const bool rows_may_differ = task.slot.kind == SlotKind::kEmbedding || task.slot.kind == SlotKind::kHead;
  if (base.rank() == fine_tune.rank() && MatrixCols(task.base->view) == MatrixCols(task.fine_tune->view) &&
      (rows_may_differ || base == fine_tune)) {
    return Status::Ok();
  }
  return FailedPrecondition("tensor " + task.slot.name + " has shape " + ToString(fine_tune) +
                            " in the fine-tune and " + ToString(base) + " in the base: this is not a fine-tune of it");
}

}  // namespace

Result<std::vector<WeightTask>> ListTasks(const Checkpoint& base, const BoundCheckpoint& bound_base,
                                          const Checkpoint& fine_tune) {
  DF_ASSIGN_OR_RETURN(const BoundCheckpoint bound, Bind(fine_tune));
  std::vector<WeightTask> tasks;
  for (const Slot& slot : bound.slots) {
    if (slot.kind == SlotKind::kHead) continue;
    tasks.push_back({slot, base.FindOrNull(slot.name), fine_tune.FindOrNull(slot.name)});
  }
  AddHead(base, bound_base, fine_tune, bound.tied, tasks);
  for (const WeightTask& task : tasks) DF_RETURN_IF_ERROR(CheckShapes(task));
  return tasks;
}

const std::optional<Code>& GivenCode(SlotKind kind, const CompressOptions& options) {
  static const std::optional<Code> kVector = Code{.kind = CodeKind::kRaw};
  switch (kind) {
    case SlotKind::kMatrix: return options.matrices;
    case SlotKind::kEmbedding: return options.embeddings;
    case SlotKind::kHead: return options.head;
    case SlotKind::kVector: break;
  }
  return kVector;
}

}  // namespace df
