#include "codec/compressor.h"

#include <algorithm>

#include "base/json.h"
#include "codec/model_card.h"
#include "codec/side_files.h"
#include "codec/survey.h"
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

Result<EncodedWeight> EncodeTask(ThreadPool& pool, const WeightTask& task, const Code& code) {
  const WeightPair pair = task.pair();
  DF_ASSIGN_OR_RETURN(EncodedWeight encoded, Encode(pool, pair, code));
  if (encoded.delta.IsBase() && task.must_be_stored) encoded.delta.raw = pair.fine_tune;
  return encoded;
}

// The stream of tensors: reports progress before each, gives its pages back after.
class Pass {
 public:
  Pass(const std::vector<WeightTask>& tasks, const CompressOptions& options, size_t n_passes)
      : tasks_(tasks), options_(options) {
    progress_.n_tensors = n_passes * tasks.size();
    for (const WeightTask& task : tasks) progress_.n_bytes += n_passes * task.fine_tune->view.bytes.size();
  }

  // Status body(task, its place).
  template <typename Body>
  Status ForEachTask(const Body& body) {
    for (size_t i = 0; i < tasks_.size(); ++i) {
      const WeightTask& task = tasks_[i];
      if (options_.on_progress && !options_.on_progress(progress_)) {
        return Cancelled("stopped before " + task.slot.name);
      }
      DF_RETURN_IF_ERROR(body(task, i));
      task.base->file->DropPages(task.base->view.bytes);
      task.fine_tune->file->DropPages(task.fine_tune->view.bytes);
      ++progress_.done_tensors;
      progress_.done_bytes += task.fine_tune->view.bytes.size();
    }
    return Status::Ok();
  }

 private:
  const std::vector<WeightTask>& tasks_;
  const CompressOptions& options_;
  CompressOptions::Progress progress_;
};

// The code of each weight, and what it was chosen from.
struct Plan {
  std::vector<Code> codes;
  std::vector<std::vector<Candidate>> candidates;
};

Result<std::vector<size_t>> Choose(const std::vector<WeightTask>& tasks,
                                   const std::vector<std::vector<Candidate>>& candidates,
                                   const CompressOptions& options) {
  uint64_t n_weights = 0, full_bytes = 0;
  std::vector<std::string> names;
  std::vector<std::vector<Candidate>> open = candidates;
  for (size_t i = 0; i < tasks.size(); ++i) {
    names.push_back(tasks[i].slot.name);
    n_weights += tasks[i].fine_tune->view.elements();
    full_bytes += tasks[i].fine_tune->view.bytes.size();
    // A given code stands whatever its error.
    if (GivenCode(tasks[i].slot.kind, options)) open[i].front().error = 0;
  }
  if (options.max_error) return ChooseByError(open, names, *options.max_error);
  return ChooseByBytes(open, options.budget.Bytes(n_weights, full_bytes));
}

bool IsChosen(const WeightTask& task, const CompressOptions& options) {
  return !GivenCode(task.slot.kind, options).has_value();
}

Result<Plan> MakePlan(ThreadPool& pool, const std::vector<WeightTask>& tasks, const CompressOptions& options,
                      Pass& pass) {
  Plan plan;
  plan.candidates.resize(tasks.size());
  if (std::ranges::none_of(tasks, [&](const WeightTask& task) { return IsChosen(task, options); })) {
    for (const WeightTask& task : tasks) plan.codes.push_back(*GivenCode(task.slot.kind, options));
    return plan;
  }
  DF_RETURN_IF_ERROR(pass.ForEachTask([&](const WeightTask& task, size_t i) -> Status {
    const std::optional<Code>& given = GivenCode(task.slot.kind, options);
    const auto kind = task.slot.kind == SlotKind::kMatrix ? SurveyKind::kMatrix : SurveyKind::kVocabulary;
    DF_ASSIGN_OR_RETURN(plan.candidates[i],
                        given ? SurveyFixed(pool, task.pair(), *given) : SurveyWeight(pool, task.pair(), kind));
    Candidate& first = plan.candidates[i].front();
    if (first.bytes == 0 && task.must_be_stored) first.bytes = task.fine_tune->view.bytes.size();
    return Status::Ok();
  }));
  DF_ASSIGN_OR_RETURN(const std::vector<size_t> chosen, Choose(tasks, plan.candidates, options));
  for (size_t i = 0; i < tasks.size(); ++i) {
    plan.codes.push_back(plan.candidates[i][chosen[i]].code);
    if (!IsChosen(tasks[i], options)) plan.candidates[i].clear();
  }
  return plan;
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

Status EncodeAll(ThreadPool& pool, Pass& pass, Plan plan, DeltaWriter& writer, CompressReport& report) {
  return pass.ForEachTask([&](const WeightTask& task, size_t i) -> Status {
    DF_ASSIGN_OR_RETURN(const EncodedWeight encoded, EncodeTask(pool, task, plan.codes[i]));
    DF_RETURN_IF_ERROR(Store(task, encoded.delta, writer));
    report.weights.push_back(Describe(task, encoded));
    report.weights.back().candidates = std::move(plan.candidates[i]);
    return Status::Ok();
  });
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
  const bool any_chosen = std::ranges::any_of(tasks, [&](const WeightTask& task) { return IsChosen(task, options); });
  Pass pass(tasks, options, any_chosen ? 2 : 1);
  DF_ASSIGN_OR_RETURN(Plan plan, MakePlan(pool, tasks, options, pass));
  DF_RETURN_IF_ERROR(EncodeAll(pool, pass, std::move(plan), *writer, report));
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
