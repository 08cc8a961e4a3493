#include "codec/compressor.h"

#include <algorithm>

#include "codec/compress_steps.h"
#include "codec/model_card.h"
#include "codec/side_files.h"
#include "codec/survey.h"
#include "codec/weight_task.h"
#include "format/delta_dir.h"

namespace df {
namespace {

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
                      Pass& pass, CompressSteps& steps) {
  Plan plan;
  plan.candidates.resize(tasks.size());
  if (std::ranges::none_of(tasks, [&](const WeightTask& task) { return IsChosen(task, options); })) {
    for (const WeightTask& task : tasks) plan.codes.push_back(*GivenCode(task.slot.kind, options));
    return plan;
  }
  DF_RETURN_IF_ERROR(pass.ForEachTask([&](const WeightTask& task, size_t i) -> Status {
    if (const Json* done = steps.NextOrNull()) {
      DF_ASSIGN_OR_RETURN(plan.candidates[i], ReadCandidates(*done, task.slot.name));
      return Status::Ok();
    }
    const std::optional<Code>& given = GivenCode(task.slot.kind, options);
    const auto kind = task.slot.kind == SlotKind::kMatrix ? SurveyKind::kMatrix : SurveyKind::kVocabulary;
    DF_ASSIGN_OR_RETURN(plan.candidates[i],
                        given ? SurveyFixed(pool, task.pair(), *given) : SurveyWeight(pool, task.pair(), kind));
    Candidate& first = plan.candidates[i].front();
    if (first.bytes == 0 && task.must_be_stored) first.bytes = task.fine_tune->view.bytes.size();
    return steps.End(NoteOf(task.slot.name, plan.candidates[i]));
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

// Before it is encoded.
WeightReport Describe(const WeightTask& task) {
  const TensorView& weight = task.fine_tune->view;
  WeightReport report;
  report.name = task.slot.name;
  report.kind = task.slot.kind;
  report.shape = weight.shape;
  report.full_bytes = weight.bytes.size();
  return report;
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

Status EncodeAll(ThreadPool& pool, Pass& pass, Plan plan, DeltaWriter& writer, CompressSteps& steps,
                 CompressReport& report) {
  return pass.ForEachTask([&](const WeightTask& task, size_t i) -> Status {
    WeightReport& weight = report.weights.emplace_back(Describe(task));
    weight.candidates = std::move(plan.candidates[i]);
    if (const Json* done = steps.NextOrNull()) return ReadEncoded(*done, weight);
    DF_ASSIGN_OR_RETURN(const EncodedWeight encoded, EncodeTask(pool, task, plan.codes[i]));
    DF_RETURN_IF_ERROR(Store(task, encoded.delta, writer));
    weight.code = CodeName(encoded.delta);
    weight.bytes = StoredBytes(encoded.delta);
    weight.quality = encoded.quality;
    return steps.End(NoteOf(weight));
  });
}

// Everything from the first tensor to the directory's name.
Status WriteDelta(ThreadPool& pool, const Checkpoint& base, const Checkpoint& fine_tune,
                  const std::vector<WeightTask>& tasks, const CompressOptions& options, DeltaWriter& writer,
                  CompressReport& report) {
  const bool any_chosen = std::ranges::any_of(tasks, [&](const WeightTask& task) { return IsChosen(task, options); });
  Pass pass(tasks, options, any_chosen ? 2 : 1);
  CompressSteps steps(writer);
  DF_ASSIGN_OR_RETURN(Plan plan, MakePlan(pool, tasks, options, pass, steps));
  DF_RETURN_IF_ERROR(EncodeAll(pool, pass, std::move(plan), writer, steps, report));
  Summarize(report);
  DF_ASSIGN_OR_RETURN(report.files, CopyChangedFiles(base.directory(), fine_tune.directory(), writer));
  DF_RETURN_IF_ERROR(writer.AddFile("README.md", ModelCard(report, options)));
  // A page that could not be read was coded as zeros: nothing of it may be committed.
  DF_RETURN_IF_ERROR(base.CheckIntact());
  DF_RETURN_IF_ERROR(fine_tune.CheckIntact());
  return writer.Commit(ToJson(report, options));
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
  DF_ASSIGN_OR_RETURN(const Json task, CompressTask(fine_tune, report.base_fingerprint, options));
  DF_ASSIGN_OR_RETURN(const std::unique_ptr<DeltaWriter> writer,
                      DeltaWriter::Create(directory, {.base_fingerprint = report.base_fingerprint,
                                                      .base_name = options.base_name,
                                                      .replace = options.replace,
                                                      .inputs = {base.directory(), fine_tune.directory()},
                                                      .task = task,
                                                      .resume = options.resume}));
  const Status status = WriteDelta(pool, base, fine_tune, tasks, options, *writer, report);
  if (status.code() == StatusCode::kCancelled) writer->Keep();
  DF_RETURN_IF_ERROR(status);
  return report;
}

}  // namespace df
