#include "codec/compressor.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "base/work_behind.h"
#include "codec/compress_steps.h"
#include "codec/model_card.h"
#include "codec/output_target.h"
#include "codec/side_files.h"
#include "codec/survey.h"
#include "codec/weight_task.h"
#include "format/delta_dir.h"
#include "model/layer_names.h"

namespace df {
namespace {

Result<EncodedWeight> EncodeTask(ThreadPool& pool, const WeightTask& task, const Code& code,
                                 const WeightInputs* inputs) {
  const WeightPair pair = task.pair();
  Result<EncodedWeight> encoded = Encode(pool, pair, code, inputs);
  if (encoded.ok() && encoded->delta.IsBase() && task.must_be_stored) encoded->delta.raw = pair.fine_tune;
  return encoded;
}

// One weight under way: what it is fed with, where there is a calibration and it is a matrix.
struct Turn {
  const WeightTask& task;
  size_t place = 0;                      // among the tasks
  LinearSlot slot = {};                  // of a matrix with inputs
  const WeightInputs* inputs = nullptr;  // null = none
};

// Whether any code would be fitted.
bool FitsCodes(const CompressOptions& options) {
  return options.calibration && (!options.matrices || TakesInputs(*options.matrices));
}

// The stream of tensors: reports progress before each. With a calibration, all matrices of a layer have their turn when
// the first is due.
class Pass {
 public:
  // `tied_inputs`: of an embedding that is the head too; may be null.
  Pass(const std::vector<WeightTask>& tasks, const CompressOptions& options, size_t n_passes,
       const WeightInputs* tied_inputs)
      : tasks_(tasks), options_(options), tied_inputs_(tied_inputs) {
    progress_.n_tensors = n_passes * tasks.size();
    for (size_t i = 0; i < tasks.size(); ++i) {
      progress_.n_bytes += n_passes * tasks[i].fine_tune->view.bytes.size();
      place_of_[tasks[i].slot.name] = i;
      order_.push_back(i);
    }
    // As a delta has them: what is written first need not be moved. Inputs come in the order of the tasks alone.
    if (!FitsCodes(options)) std::ranges::sort(order_, {}, [&](size_t i) { return tasks[i].slot.name; });
  }

  // `stream` null: no matrix has inputs. The embedding's turn comes first.
  using Body = std::function<Status(const Turn& turn)>;
  Status ForEachTask(LayerStream* stream, const Body& body) {
    size_t layer = 0;
    for (const size_t i : order_) {
      if (!stream || tasks_[i].slot.kind != SlotKind::kMatrix) {
        DF_RETURN_IF_ERROR(TakeOwnTurn(stream, i, body));
      } else if (tasks_[i].slot.name == WeightName(layer, LinearSlot::kQ)) {
        DF_RETURN_IF_ERROR(RunLayer(*stream, layer++, body));
      }
    }
    return Status::Ok();
  }

 private:
  Status TakeOwnTurn(LayerStream* stream, size_t place, const Body& body) {
    const WeightTask& task = tasks_[place];
    Turn turn{.task = task, .place = place};
    WeightInputs head_inputs;
    // Rows that the base lacks have no difference to fit.
    if (stream && MatrixRows(task.base->view) == MatrixRows(task.fine_tune->view)) {
      if (task.slot.kind == SlotKind::kEmbedding) turn.inputs = tied_inputs_;
      if (task.slot.kind == SlotKind::kHead) {
        head_inputs = stream->HeadInputs();
        turn.inputs = &head_inputs;
      }
    }
    return TakeTurn(turn, body);
  }

  Status RunLayer(LayerStream& stream, size_t layer, const Body& body) {
    return stream.RunLayer([&](LinearSlot slot, const WeightInputs& inputs) -> Status {
      const size_t place = place_of_.at(WeightName(layer, slot));
      return TakeTurn({.task = tasks_[place], .place = place, .slot = slot, .inputs = &inputs}, body);
    });
  }

  Status TakeTurn(const Turn& turn, const Body& body) {
    if (options_.on_progress && !options_.on_progress(progress_)) {
      return Cancelled("stopped before " + turn.task.slot.name);
    }
    DF_RETURN_IF_ERROR(body(turn));
    ++progress_.done_tensors;
    progress_.done_bytes += turn.task.fine_tune->view.bytes.size();
    return Status::Ok();
  }

  const std::vector<WeightTask>& tasks_;
  const CompressOptions& options_;
  const WeightInputs* tied_inputs_;
  std::unordered_map<std::string, size_t> place_of_;
  std::vector<size_t> order_;  // places of the tasks, as they have their turns
  CompressOptions::Progress progress_;
};

// The code of each weight, and what it was chosen from.
struct Plan {
  std::vector<Code> codes;
  std::vector<std::vector<Candidate>> candidates;
  std::vector<size_t> chosen;           // places among the candidates; none where no code was chosen
  std::optional<uint64_t> total_bytes;  // of the candidates, where bytes were bounded
};

uint64_t SmallestBytes(const std::vector<std::vector<Candidate>>& weights) {
  uint64_t bytes = 0;
  for (const std::vector<Candidate>& candidates : weights) {
    bytes += std::ranges::min_element(candidates, {}, &Candidate::bytes)->bytes;
  }
  return bytes;
}

// What a loss of one weight counts beside those of others, by where its outputs go. Those of the head are the model's:
// 1, as is the embedding, which all layers start from; 2 where one is both. A layer's matrix has its part in one of the
// 2 n_layers terms that are added up on the way.
double LossWeight(const WeightTask& task, size_t n_matrices, bool is_tied) {
  if (task.slot.kind == SlotKind::kMatrix) {
    return static_cast<double>(kLinearSlots) / (2 * static_cast<double>(n_matrices));
  }
  return is_tied ? 2 : 1;
}

Result<std::vector<size_t>> Choose(const std::vector<WeightTask>& tasks,
                                   const std::vector<std::vector<Candidate>>& candidates,
                                   const CompressOptions& options) {
  uint64_t n_weights = 0, full_bytes = 0;
  std::vector<std::string> names;
  std::vector<std::vector<Candidate>> open = candidates;
  const bool is_tied = tasks.back().slot.kind != SlotKind::kHead;
  const auto n_matrices = static_cast<size_t>(
      std::ranges::count_if(tasks, [](const WeightTask& task) { return task.slot.kind == SlotKind::kMatrix; }));
  for (size_t i = 0; i < tasks.size(); ++i) {
    names.push_back(tasks[i].slot.name);
    n_weights += tasks[i].fine_tune->view.elements();
    full_bytes += tasks[i].fine_tune->view.bytes.size();
    for (Candidate& candidate : open[i]) candidate.loss *= LossWeight(tasks[i], n_matrices, is_tied);
    // A given code stands whatever its error.
    if (GivenCode(tasks[i].slot.kind, options)) open[i].front().error = 0;
  }
  if (options.max_error) return ChooseByError(open, names, *options.max_error);
  const uint64_t bytes = options.budget.Bytes(n_weights, full_bytes);
  return ChooseByBytes(open, options.budget_may_grow ? std::max(bytes, SmallestBytes(open)) : bytes);
}

bool IsChosen(const WeightTask& task, const CompressOptions& options) {
  return !GivenCode(task.slot.kind, options).has_value();
}

Result<Plan> MakePlan(ThreadPool& pool, const std::vector<WeightTask>& tasks, const CompressOptions& options,
                      LayerStream* stream, Pass& pass, CompressSteps& steps) {
  Plan plan;
  plan.candidates.resize(tasks.size());
  if (std::ranges::none_of(tasks, [&](const WeightTask& task) { return IsChosen(task, options); })) {
    for (const WeightTask& task : tasks) plan.codes.push_back(*GivenCode(task.slot.kind, options));
    return plan;
  }
  LayerStream* const shown = options.matrices ? nullptr : stream;  // given codes need to be counted only
  if (shown) shown->Begin(nullptr);
  const Status surveyed = pass.ForEachTask(shown, [&](const Turn& turn) -> Status {
    const WeightTask& task = turn.task;
    if (const Json* done = steps.NextOrNull()) {
      DF_ASSIGN_OR_RETURN(plan.candidates[turn.place], ReadCandidates(*done, task.slot.name));
      return Status::Ok();
    }
    const std::optional<Code>& given = GivenCode(task.slot.kind, options);
    const auto kind = task.slot.kind == SlotKind::kMatrix ? SurveyKind::kMatrix : SurveyKind::kVocabulary;
    std::vector<Candidate>& candidates = plan.candidates[turn.place];
    const auto purpose = stream && kind == SurveyKind::kMatrix ? SurveyFor::kFitted : SurveyFor::kAsItIs;
    DF_ASSIGN_OR_RETURN(candidates, given ? SurveyFixed(pool, task.pair(), *given, purpose)
                                          : SurveyWeight(pool, task.pair(), {kind, turn.inputs, stream != nullptr}));
    Candidate& first = candidates.front();
    if (first.bytes == 0 && task.must_be_stored) first.bytes = task.fine_tune->view.bytes.size();
    if (!shown || kind != SurveyKind::kMatrix) task.DropPages();  // else the stream does
    return steps.End(NoteOf(task.slot.name, candidates));
  });
  DF_RETURN_IF_ERROR(surveyed);
  DF_ASSIGN_OR_RETURN(plan.chosen, Choose(tasks, plan.candidates, options));
  if (!options.max_error) plan.total_bytes = 0;
  for (size_t i = 0; i < tasks.size(); ++i) {
    const Candidate& candidate = plan.candidates[i][plan.chosen[i]];
    if (plan.total_bytes) *plan.total_bytes += candidate.bytes;
    plan.codes.push_back(candidate.code);
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

// Nothing where it cannot be told.
std::optional<double> OutputError(ThreadPool& pool, const WeightPair& pair, const LinearDelta& delta,
                                  const WeightInputs& inputs) {
  if (!inputs.HasMoment()) return {};
  const double lost = OutputEnergy(pool, pair, delta, inputs);
  const double all = OutputEnergy(pool, pair, UnchangedWeight(delta.d_out, delta.d_in).delta, inputs);
  return all > 0 ? std::sqrt(std::max(lost, 0.0) / all) : 0.0;
}

// Totals and means over what `weights` lists.
void Summarize(CompressReport& report) {
  double error = 0, cosine = 0, n_coded = 0, output_error = 0, n_outputs = 0;
  for (const WeightReport& weight : report.weights) {
    report.delta_bytes += weight.bytes;
    report.full_bytes += weight.full_bytes;
    report.n_unchanged += weight.bytes == 0 ? 1 : 0;  // no code stores a change as nothing (code.h)
    if (weight.kind != SlotKind::kMatrix || weight.bytes == 0) continue;
    error += weight.quality.relative_frobenius;
    cosine += weight.quality.cosine;
    n_coded += 1;
    if (!weight.output_error) continue;
    output_error += *weight.output_error;
    n_outputs += 1;
  }
  if (n_outputs > 0) report.mean_output_error = output_error / n_outputs;
  if (n_coded == 0) return;
  report.mean_relative_frobenius = error / n_coded;
  report.mean_cosine = cosine / n_coded;
}

// As --max-error bounds it: of the outputs where there are inputs to tell, else of the weight.
double BoundedError(const EncodedWeight& encoded, const std::optional<double>& output_error) {
  return output_error.value_or(encoded.quality.relative_frobenius);
}

// A weight's encoding and what its outputs lose, where that can be told.
struct Encoding {
  EncodedWeight encoded;
  std::optional<double> output_error;
  size_t chosen = 0;  // among the candidates, where there are any
};

Result<Encoding> EncodeMeasured(ThreadPool& pool, const Turn& turn, const Code& code) {
  Encoding result;
  DF_ASSIGN_OR_RETURN(result.encoded, EncodeTask(pool, turn.task, code, turn.inputs));
  if (turn.inputs) result.output_error = OutputError(pool, turn.task.pair(), result.encoded.delta, *turn.inputs);
  return result;
}

// With the code of the plan; where an error is bounded and what was encoded misses it, with the next that keeps it.
Result<Encoding> EncodePlanned(ThreadPool& pool, const Turn& turn, const Plan& plan, const CompressOptions& options) {
  DF_ASSIGN_OR_RETURN(Encoding result, EncodeMeasured(pool, turn, plan.codes[turn.place]));
  const std::vector<Candidate>& candidates = plan.candidates[turn.place];
  if (candidates.empty()) return result;
  std::optional<size_t> at = result.chosen = plan.chosen[turn.place];
  if (!options.max_error) return result;
  while (!candidates[*at].IsLossless() && BoundedError(result.encoded, result.output_error) > *options.max_error) {
    at = NextByError(candidates, *at, *options.max_error);
    if (!at) return Internal("tensor " + turn.task.slot.name + ": no code keeps the error that was measured");
    DF_ASSIGN_OR_RETURN(result, EncodeMeasured(pool, turn, candidates[*at].code));
    result.chosen = *at;
  }
  return result;
}

// A bound on bytes is kept by what is stored, not by what was expected.
Status CheckTotal(const Plan& plan, const CompressReport& report) {
  uint64_t bytes = 0;
  for (const WeightReport& weight : report.weights) bytes += weight.bytes;
  if (!plan.total_bytes || bytes <= *plan.total_bytes) return Status::Ok();
  return Internal("the delta takes " + std::to_string(bytes) + " bytes, its codes were measured to take " +
                  std::to_string(*plan.total_bytes));
}

// What is encoded waits for the disk in at most so much memory, beside the weight at hand.
constexpr uint64_t kMaxBehindBytes = uint64_t{16} << 20;

uint64_t OwnedBytes(const EncodedWeight& encoded) {
  uint64_t bytes = 0;
  for (const Buffer<uint8_t>& buffer : encoded.owned) bytes += buffer.size();
  return bytes;
}

enum class Pages { kGiveBack, kLeave };

// Writes what was encoded, weight by weight, behind whoever encodes.
struct Storing {
  DeltaWriter& writer;
  CompressSteps& steps;
  WorkBehind behind{kMaxBehindBytes};

  Status Do(const WeightTask& task, EncodedWeight encoded, Json note, Pages pages) {
    const uint64_t bytes = OwnedBytes(encoded);
    auto shared = std::make_shared<EncodedWeight>(std::move(encoded));
    return behind.Do(bytes, [this, &task, shared = std::move(shared), note = std::move(note), pages] {
      DF_RETURN_IF_ERROR(Store(task, shared->delta, writer));
      if (pages == Pages::kGiveBack) task.DropPages();
      return steps.End(note);
    });
  }
};

Status EncodeAll(ThreadPool& pool, LayerStream* stream, Pass& pass, Plan plan, const CompressOptions& options,
                 DeltaWriter& writer, CompressSteps& steps, CompressReport& report) {
  report.weights.resize(plan.codes.size());
  Storing storing{writer, steps};
  const Status status = pass.ForEachTask(stream, [&](const Turn& turn) -> Status {
    WeightReport& weight = report.weights[turn.place];
    weight = Describe(turn.task);
    weight.candidates = plan.candidates[turn.place];
    const Json* const done = steps.NextOrNull();
    // What a stopped run has stored is seen by the weights behind it: with a calibration it is made again.
    if (done && !stream) return ReadEncoded(*done, weight);
    DF_ASSIGN_OR_RETURN(Encoding coded, EncodePlanned(pool, turn, plan, options));
    EncodedWeight& encoded = coded.encoded;
    const bool is_streamed = stream && turn.task.slot.kind == SlotKind::kMatrix;  // the stream has its pages
    if (stream && turn.task.slot.kind == SlotKind::kEmbedding) stream->Begin(&encoded.delta);
    if (turn.inputs && is_streamed) stream->Take(turn.slot, encoded.delta);
    weight.code = CodeName(encoded.delta);
    weight.bytes = StoredBytes(encoded.delta);
    weight.quality = encoded.quality;
    weight.output_error = coded.output_error;
    weight.chosen = coded.chosen;
    if (done) return ReadEncoded(*done, weight);
    return storing.Do(turn.task, std::move(encoded), NoteOf(weight), is_streamed ? Pages::kLeave : Pages::kGiveBack);
  });
  const Status stored = storing.behind.Finish();  // of what was encoded before a stop too
  DF_RETURN_IF_ERROR(status);
  DF_RETURN_IF_ERROR(stored);
  return CheckTotal(plan, report);
}

// Of an embedding that is the head too, its rows being looked up as well: this share of the mean over all directions is
// mixed in. Of 0.1, 1 and 10 the first had the least divergence on the demonstration's math.
constexpr double kLookUpShare = 0.1;

// What the fine-tune feeds to such an embedding. Nothing where the moment does not fit.
Result<std::optional<WeightInputs>> TiedInputs(LayerStream& stream, const ModelConfig& config) {
  stream.Begin(nullptr);
  for (size_t layer = 0; layer < config.n_layers; ++layer) DF_RETURN_IF_ERROR(stream.RunLayer({}));
  WeightInputs inputs = stream.HeadInputs();
  if (!inputs.HasMoment()) return std::optional<WeightInputs>();
  inputs.fine_tune.data = inputs.coded.data = nullptr;  // C says all, and the views end with the next pass
  const size_t d = inputs.moment.rows();
  double trace = 0;
  for (size_t j = 0; j < d; ++j) trace += double{inputs.moment.Row(j)[j]};
  const auto added = static_cast<float>(kLookUpShare * trace / static_cast<double>(d));
  for (size_t j = 0; j < d; ++j) inputs.moment.Row(j)[j] += added;
  return std::optional<WeightInputs>(std::move(inputs));
}

// Null where no code would be fitted.
Result<std::unique_ptr<LayerStream>> StreamFor(const Checkpoint& base, const Checkpoint& fine_tune,
                                               const CompressOptions& options) {
  if (!FitsCodes(options)) return std::unique_ptr<LayerStream>();
  return LayerStream::Create(base, fine_tune, *options.calibration);
}

size_t MostParts(const Code& code) {
  switch (code.kind) {
    case CodeKind::kRaw: return 1;
    case CodeKind::kSign: return (code.sign.scale == ScaleKind::kRank1 ? 3 : 2) + (code.rank > 0 ? 2 : 0);
    case CodeKind::kByteRows: return 3;
    case CodeKind::kRows:
    case CodeKind::kExact:
    case CodeKind::kLowRank: break;
  }
  return 2;
}

// As DeltaWriter's options ask for it; 0 where that cannot be told, or tensors come in the order of the layers.
uint64_t HeaderBytes(const std::vector<WeightTask>& tasks, const CompressOptions& options) {
  constexpr uint64_t kMetadataBytes = 1024;
  constexpr uint64_t kEntryBytes = 100;  // dtype, shape and offsets of up to 12 digits each, a suffix
  uint64_t bytes = kMetadataBytes;
  if (FitsCodes(options)) return 0;
  for (const WeightTask& task : tasks) {
    const std::optional<Code>& code = GivenCode(task.slot.kind, options);
    if (!code) return 0;
    bytes += MostParts(*code) * (task.slot.name.size() + kEntryBytes);
  }
  return bytes;
}

// Everything from the first tensor to the directory's name.
Status WriteDelta(ThreadPool& pool, const Checkpoint& base, const Checkpoint& fine_tune,
                  const std::vector<WeightTask>& tasks, const CompressOptions& options, DeltaWriter& writer,
                  CompressReport& report) {
  const bool any_chosen = std::ranges::any_of(tasks, [&](const WeightTask& task) { return IsChosen(task, options); });
  DF_ASSIGN_OR_RETURN(const std::unique_ptr<LayerStream> stream, StreamFor(base, fine_tune, options));
  report.calibration_tokens = stream ? stream->n_tokens() : 0;
  std::optional<WeightInputs> tied_inputs;
  if (stream && tasks.back().slot.kind != SlotKind::kHead) {
    DF_ASSIGN_OR_RETURN(tied_inputs, TiedInputs(*stream, fine_tune.config()));
  }
  Pass pass(tasks, options, any_chosen ? 2 : 1, tied_inputs ? &*tied_inputs : nullptr);
  CompressSteps steps(writer);
  DF_ASSIGN_OR_RETURN(Plan plan, MakePlan(pool, tasks, options, stream.get(), pass, steps));
  DF_RETURN_IF_ERROR(EncodeAll(pool, stream.get(), pass, std::move(plan), options, writer, steps, report));
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
                                                      .resume = options.resume,
                                                      .header_bytes = HeaderBytes(tasks, options)}));
  const Status status = WriteDelta(pool, base, fine_tune, tasks, options, *writer, report);
  if (status.code() == StatusCode::kCancelled) writer->Keep();
  DF_RETURN_IF_ERROR(status);
  return report;
}

}  // namespace df
