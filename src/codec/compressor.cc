#include "codec/compressor.h"

#include <algorithm>

#include "base/json.h"
#include "codec/exact.h"
#include "codec/model_card.h"
#include "codec/side_files.h"
#include "format/delta_dir.h"

namespace df {
namespace {

// A weight to be coded: the fine-tune's slot and what stands for it in the base.
struct WeightTask {
  Slot slot;
  const StoredTensor* base = nullptr;
  const StoredTensor* fine_tune = nullptr;
  bool must_be_stored = false;  // an absent entry would be read as something else

  WeightPair pair() const { return {slot.name, base->view, fine_tune->view}; }
};

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

Result<EncodedWeight> EncodeVocabulary(ThreadPool& pool, const WeightPair& pair, ScaleKind scale,
                                       VocabularyOptions options) {
  switch (options.code) {
    case VocabularyCode::kAuto: return EncodeExact(pool, pair, ExactCode::kSmallest);
    case VocabularyCode::kRaw: return EncodeExact(pool, pair, ExactCode::kRaw);
    case VocabularyCode::kRows: return EncodeExact(pool, pair, ExactCode::kRows);
    case VocabularyCode::kSign: break;
  }
  DF_ASSIGN_OR_RETURN(EncodedWeight encoded, EncodeSign(pool, pair, {.scale = scale, .n_planes = options.n_planes}));
  DF_RETURN_IF_ERROR(AddNewRows(pair, encoded));
  return encoded;
}

Result<EncodedWeight> Encode(ThreadPool& pool, const WeightTask& task, const CompressOptions& options) {
  const WeightPair pair = task.pair();
  switch (task.slot.kind) {
    case SlotKind::kMatrix: return EncodeSign(pool, pair, options.sign);
    case SlotKind::kVector: return EncodeExact(pool, pair, ExactCode::kRaw);
    case SlotKind::kEmbedding: return EncodeVocabulary(pool, pair, options.sign.scale, options.embeddings);
    case SlotKind::kHead: break;
  }
  DF_ASSIGN_OR_RETURN(EncodedWeight encoded, EncodeVocabulary(pool, pair, options.sign.scale, options.head));
  if (encoded.delta.IsBase() && task.must_be_stored) encoded.delta.raw = pair.fine_tune;
  return encoded;
}

Status Store(const WeightTask& task, const LinearDelta& delta, DeltaWriter& writer) {
  if (delta.IsBase()) return Status::Ok();
  if (!task.slot.IsVector()) return writer.AddLinear(task.slot.name, delta);
  return writer.Add(task.slot.name, delta.raw->dtype, delta.raw->shape, delta.raw->bytes);
}

WeightReport Describe(const WeightTask& task, const EncodedWeight& encoded) {
  const TensorView& weight = task.fine_tune->view;
  return {.name = task.slot.name,
          .kind = task.slot.kind,
          .code = CodeName(encoded.delta),
          .shape = weight.shape,
          .bytes = StoredBytes(encoded.delta),
          .full_bytes = weight.bytes.size(),
          .quality = encoded.quality};
}

// Totals and means over what `weights` lists.
void Summarize(CompressReport& report) {
  double error = 0, cosine = 0, n_coded = 0;
  for (const WeightReport& weight : report.weights) {
    report.delta_bytes += weight.bytes;
    report.full_bytes += weight.full_bytes;
    report.n_unchanged += weight.bytes == 0 ? 1 : 0;
    if (weight.kind != SlotKind::kMatrix || weight.bytes == 0) continue;
    error += weight.quality.relative_frobenius;
    cosine += weight.quality.cosine;
    n_coded += 1;
  }
  if (n_coded == 0) return;
  report.mean_relative_frobenius = error / n_coded;
  report.mean_cosine = cosine / n_coded;
}

Status EncodeAll(ThreadPool& pool, const std::vector<WeightTask>& tasks, const CompressOptions& options,
                 DeltaWriter& writer, CompressReport& report) {
  CompressOptions::Progress progress{.n_tensors = tasks.size()};
  for (const WeightTask& task : tasks) progress.n_bytes += task.fine_tune->view.bytes.size();
  for (const WeightTask& task : tasks) {
    if (options.on_progress && !options.on_progress(progress)) return Cancelled("stopped before " + task.slot.name);
    DF_ASSIGN_OR_RETURN(const EncodedWeight encoded, Encode(pool, task, options));
    DF_RETURN_IF_ERROR(Store(task, encoded.delta, writer));
    report.weights.push_back(Describe(task, encoded));
    task.base->file->DropPages(task.base->view.bytes);
    task.fine_tune->file->DropPages(task.fine_tune->view.bytes);
    ++progress.done_tensors;
    progress.done_bytes += task.fine_tune->view.bytes.size();
  }
  return Status::Ok();
}

}  // namespace

Result<CompressReport> Compress(ThreadPool& pool, const Checkpoint& base, const Checkpoint& fine_tune,
                                const std::string& directory, const CompressOptions& options) {
  DF_RETURN_IF_ERROR(CheckVariantConfig(base.config(), fine_tune.config()));
  Result<BoundCheckpoint> bound_base = Bind(base);
  if (!bound_base.ok()) return bound_base.status().Annotate("base");
  DF_ASSIGN_OR_RETURN(const std::vector<WeightTask> tasks, ListTasks(base, *bound_base, fine_tune));
  CompressReport report;
  DF_ASSIGN_OR_RETURN(report.base_fingerprint, BaseFingerprint(base, *bound_base));
  DF_ASSIGN_OR_RETURN(const std::unique_ptr<DeltaWriter> writer,
                      DeltaWriter::Create(directory, {.base_fingerprint = report.base_fingerprint,
                                                      .base_name = options.base_name,
                                                      .replace = options.replace,
                                                      .inputs = {base.directory(), fine_tune.directory()}}));
  DF_RETURN_IF_ERROR(EncodeAll(pool, tasks, options, *writer, report));
  Summarize(report);
  DF_ASSIGN_OR_RETURN(report.files, CopyChangedFiles(base.directory(), fine_tune.directory(), *writer));
  DF_RETURN_IF_ERROR(writer->AddFile("README.md", ModelCard(report, options)));
  // A page that could not be read was coded as zeros: nothing of it may be committed.
  DF_RETURN_IF_ERROR(base.CheckIntact());
  DF_RETURN_IF_ERROR(fine_tune.CheckIntact());
  DF_RETURN_IF_ERROR(writer->Commit(ToJson(report, options)));
  return report;
}

}  // namespace df
