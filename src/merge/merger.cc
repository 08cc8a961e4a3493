#include "merge/merger.h"

#include <algorithm>
#include <map>

#include "base/atomic_file.h"
#include "base/clock.h"
#include "codec/side_files.h"
#include "merge/gather.h"
#include "merge/opcm.h"
#include "merge/output.h"

namespace df::merge {
namespace {

constexpr char kFirstPass[] = "first";   // opcm: T_k of a tensor, kept
constexpr char kLastPass[] = "written";  // the merged tensor

// The stream over the tensors: notes of a stopped run first, work after. With a second pass every tensor has two turns.
class Merger {
 public:
  Merger(ThreadPool& pool, const MergePlan& plan, const MergeSources& sources, const MergerOptions& options,
         MergeOutput& output)
      : pool_(pool), plan_(plan), options_(options), output_(output), gatherer_(pool, plan, sources) {
    const size_t n_passes = plan.method->has_second_pass ? 2 : 1;
    progress_.n_tensors = n_passes * plan.tensors.size();
    progress_.n_bytes = n_passes * plan.written_bytes;
  }

  Result<std::vector<Report>> Run() {
    reports_.resize(plan_.tensors.size());
    if (!plan_.method->has_second_pass) {
      DF_RETURN_IF_ERROR(ForEachTensor(kLastPass, [&](size_t i) { return MergeOne(i); }));
      return std::move(reports_);
    }
    DF_RETURN_IF_ERROR(ForEachTensor(kFirstPass, [&](size_t i) { return KeepOne(i); }));
    for (const Report& report : reports_) sums_.Add(report);
    std::vector<Report> first = std::move(reports_);
    reports_.assign(first.size(), {});
    DF_ASSIGN_OR_RETURN(kept_, output_.MapKept());
    kept_at_ = 0;
    DF_RETURN_IF_ERROR(ForEachTensor(kLastPass, [&](size_t i) { return FinishOne(i); }));
    DF_RETURN_IF_ERROR(kept_->CheckIntact());
    for (size_t i = 0; i < first.size(); ++i) first[i].result_squares = reports_[i].result_squares;
    return first;
  }

  std::vector<double> Scales() const { return plan_.method->has_second_pass ? sums_.Lambdas() : std::vector<double>(); }

 private:
  template <typename Turn>
  Status ForEachTensor(const char* pass, const Turn& turn) {
    for (size_t i = 0; i < plan_.tensors.size(); ++i) {
      const OutputTensor& tensor = plan_.tensors[i];
      if (options_.on_progress && !options_.on_progress(progress_)) {
        return Cancelled("stopped before " + tensor.slot.name);
      }
      if (next_note_ < output_.done_notes().size()) {
        DF_RETURN_IF_ERROR(ReadDone(output_.done_notes()[next_note_++], pass, i));
      } else {
        if (i + 1 < plan_.tensors.size()) gatherer_.Announce(plan_.tensors[i + 1]);
        DF_RETURN_IF_ERROR(turn(i));
        gatherer_.Drop(tensor);
      }
      kept_at_ += tensor.elements() * sizeof(float);
      ++progress_.done_tensors;
      progress_.done_bytes += tensor.bytes();
    }
    return Status::Ok();
  }

  Json Note(const char* pass, size_t i) const {
    return {{"pass", pass}, {"tensor", plan_.tensors[i].slot.name}, {"report", NoteOf(reports_[i])}};
  }

  Status ReadDone(const Json& note, const char* pass, size_t i) {
    const Json* const noted_pass = JsonMemberOrNull(note, "pass");
    const Json* const tensor = JsonMemberOrNull(note, "tensor");
    const Json* const report = JsonMemberOrNull(note, "report");
    const std::string& name = plan_.tensors[i].slot.name;
    if (noted_pass == nullptr || tensor == nullptr || report == nullptr || *noted_pass != pass || *tensor != name) {
      return Corrupt("the journal of the run that was stopped has another step where " + name +
                     " is due; discard it with --force");
    }
    DF_ASSIGN_OR_RETURN(reports_[i], ReadNote(*report));
    return Status::Ok();
  }

  Status MergeOne(size_t i) {
    const OutputTensor& tensor = plan_.tensors[i];
    DF_ASSIGN_OR_RETURN(const TensorGroup group, gatherer_.Gather(tensor));
    const auto sink = output_.SinkFor(tensor);
    DF_ASSIGN_OR_RETURN(reports_[i],
                        Merge(pool_, *plan_.method, group, tensor.settings,
                              [&](size_t first, std::span<const float> values) { sink->Take(first, values); }));
    DF_RETURN_IF_ERROR(sink->Finish());
    return output_.EndTensor(tensor, Note(kLastPass, i));
  }

  Status KeepOne(size_t i) {
    const OutputTensor& tensor = plan_.tensors[i];
    DF_ASSIGN_OR_RETURN(const TensorGroup group, gatherer_.Gather(tensor));
    Buffer<float> unscaled(tensor.elements());
    DF_ASSIGN_OR_RETURN(reports_[i], Merge(pool_, *plan_.method, group, tensor.settings,
                                           [&](size_t first, std::span<const float> values) {
                                             std::ranges::copy(values, unscaled.data() + first);
                                           }));
    return output_.Keep(AsBytes(std::span<const float>(unscaled.span())), Note(kFirstPass, i));
  }

  Status FinishOne(size_t i) {
    const OutputTensor& tensor = plan_.tensors[i];
    DF_ASSIGN_OR_RETURN(const TensorGroup group, gatherer_.Gather(tensor));
    const Bytes kept = kept_->bytes().subspan(kept_at_, tensor.elements() * sizeof(float));
    const TensorView unscaled{DType::kF32, group.base->shape, kept};
    const auto sink = output_.SinkFor(tensor);
    DF_ASSIGN_OR_RETURN(reports_[i],
                        FinishOpcm(pool_, tensor.slot.name, *group.base, unscaled, sums_.Scale(),
                                   [&](size_t first, std::span<const float> values) { sink->Take(first, values); }));
    kept_->DropPages(kept);
    DF_RETURN_IF_ERROR(sink->Finish());
    return output_.EndTensor(tensor, Note(kLastPass, i));
  }

  ThreadPool& pool_;
  const MergePlan& plan_;
  const MergerOptions& options_;
  MergeOutput& output_;
  Gatherer gatherer_;
  std::vector<Report> reports_;
  OpcmSums sums_;
  std::unique_ptr<MappedFile> kept_;
  uint64_t kept_at_ = 0;  // where the tensor in turn begins among what was kept
  size_t next_note_ = 0;
  StreamProgress progress_;
};

MergeReport ReportOf(const MergePlan& plan, const MergeSources& sources, std::vector<Report> reports) {
  MergeReport report{.tensors = {},
                     .model_names = {},
                     .read_bytes = plan.read_bytes,
                     .bytes = plan.written_bytes,
                     .n_shards = plan.shards.size(),
                     .vocab = plan.vocabulary.rows,
                     .n_added_tokens = plan.vocabulary.n_added,
                     .tied = plan.tied,
                     .has_base = plan.method->needs_base,
                     .scales = {},
                     .stream_seconds = 0};
  for (const MergeSource& model : sources.models) report.model_names.push_back(model.name);
  for (size_t i = 0; i < reports.size(); ++i) {
    const OutputTensor& tensor = plan.tensors[i];
    report.tensors.push_back(
        {.name = tensor.slot.name,
         .shape = tensor.slot.IsVector() ? Shape{tensor.slot.d_out} : Shape{tensor.slot.d_out, tensor.slot.d_in},
         .dtype = tensor.dtype,
         .report = std::move(reports[i])});
  }
  return report;
}

// The ids of special tokens, which belong to a tokenizer.
Result<Json> IdsOf(const std::string& directory) {
  DF_ASSIGN_OR_RETURN(const Json config, ReadJsonFile(directory + "/config.json"));
  Json ids = Json::object();
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
    if (config.contains(key)) ids[key] = config[key];
  }
  return ids;
}

Status WriteConfig(const MergePlan& plan, const MergeSources& sources, const std::string& target) {
  const MergeSource& pattern = sources.pattern();
  ConfigChanges changes{.dtype = plan.tensors.front().dtype, .vocab = plan.vocabulary.rows, .unties = !plan.tied};
  if (plan.vocabulary.takes_ids) {
    DF_ASSIGN_OR_RETURN(changes.members, IdsOf(plan.vocabulary.text_directory));
  }
  // An adapter has no config of its own.
  const bool is_adapter = pattern.variant && pattern.variant->adapter != nullptr;
  return WriteFullConfig(is_adapter ? pattern.checkpoint_directory() : pattern.own_directory(), target, changes);
}

Status WriteSideFiles(const MergePlan& plan, const MergeSources& sources, const Recipe& recipe,
                      const MergeReport& report, const std::string& target) {
  if (plan.shards.size() > 1) {
    std::map<std::string, std::string> files;
    for (const OutputTensor& tensor : plan.tensors) files[tensor.slot.name] = plan.shards[tensor.shard].file_name;
    DF_RETURN_IF_ERROR(WriteShardIndex(target, files, plan.written_bytes));
  }
  DF_RETURN_IF_ERROR(WriteConfig(plan, sources, target));
  const Vocabulary& vocabulary = plan.vocabulary;
  DF_RETURN_IF_ERROR(CopyTextFiles(vocabulary.text_fallback, vocabulary.text_directory, target));
  if (vocabulary.tokenizer_json) {
    DF_RETURN_IF_ERROR(WriteFileAtomically(target + "/tokenizer.json", *vocabulary.tokenizer_json));
  }
  return WriteFileAtomically(target + "/README.md", MergeCard(report, NamedRecipe(recipe, sources)));
}

std::vector<std::string> InputsOf(const MergeSources& sources) {
  std::vector<std::string> inputs;
  const auto add = [&](const MergeSource& source) {
    inputs.push_back(source.checkpoint_directory());
    if (source.variant) inputs.push_back(source.variant_directory);
  };
  if (sources.base) add(*sources.base);
  for (const MergeSource& model : sources.models) add(model);
  return inputs;
}

Result<MergeReport> WriteAll(ThreadPool& pool, const Recipe& recipe, const MergeSources& sources, const MergePlan& plan,
                             const MergerOptions& options, MergeOutput& output) {
  Merger merger(pool, plan, sources, options, output);
  const SteadyClock clock;
  const int64_t start_us = clock.NowUs();
  DF_ASSIGN_OR_RETURN(std::vector<Report> reports, merger.Run());
  const double stream_seconds = static_cast<double>(clock.NowUs() - start_us) * 1e-6;
  MergeReport report = ReportOf(plan, sources, std::move(reports));
  report.scales = merger.Scales();
  report.stream_seconds = stream_seconds;
  DF_RETURN_IF_ERROR(WriteSideFiles(plan, sources, recipe, report, output.path()));
  // A page that could not be read was merged as zeros: nothing of it may be committed.
  DF_RETURN_IF_ERROR(CheckIntact(sources));
  DF_RETURN_IF_ERROR(output.Commit());
  return report;
}

}  // namespace

Recipe NamedRecipe(const Recipe& recipe, const MergeSources& sources) {
  Recipe named = recipe;
  if (named.base_model) named.base_model = sources.base->name;
  for (size_t i = 0; i < named.models.size(); ++i) named.models[i].model = sources.models[i].name;
  if (named.tokenizer.source == TokenizerChoice::Source::kModel) {
    named.tokenizer.model = NameForPeople(recipe.tokenizer.model);
    if (recipe.base_model == recipe.tokenizer.model) named.tokenizer.model = sources.base->name;
    for (const MergeSource& source : sources.models) {
      if (source.argument == recipe.tokenizer.model) named.tokenizer.model = source.name;
    }
  }
  return named;
}

Result<Json> TaskOf(const Recipe& recipe, const MergeSources& sources, uint64_t max_shard_bytes) {
  DF_ASSIGN_OR_RETURN(const Json identity, IdentityOf(sources));
  return Json{{"recipe", RecipeText(recipe)}, {"inputs", identity}, {"max_shard_bytes", max_shard_bytes}};
}

Result<MergeReport> MergeModels(ThreadPool& pool, const Recipe& recipe, const MergeSources& sources,
                                const std::string& target, const MergerOptions& options) {
  DF_ASSIGN_OR_RETURN(const MergePlan plan, PlanMerge(recipe, sources, options.max_shard_bytes));
  DF_ASSIGN_OR_RETURN(const Json task, TaskOf(recipe, sources, options.max_shard_bytes));
  DF_ASSIGN_OR_RETURN(const std::unique_ptr<MergeOutput> output,
                      MergeOutput::Create(target, plan,
                                          {.replace = options.replace,
                                           .resume = options.resume,
                                           .note_name = options.note_name,
                                           .inputs = InputsOf(sources),
                                           .task = task,
                                           .step_bytes = options.step_bytes,
                                           .step_seconds = options.step_seconds}));
  Result<MergeReport> report = WriteAll(pool, recipe, sources, plan, options, *output);
  if (report.status().code() == StatusCode::kCancelled) output->KeepForResume();
  return report;
}

Result<MergeEstimate> EstimateMerge(ThreadPool& pool, const Recipe& recipe, const MergeSources& sources,
                                    uint64_t max_shard_bytes, double max_seconds) {
  DF_ASSIGN_OR_RETURN(const MergePlan plan, PlanMerge(recipe, sources, max_shard_bytes));
  MergeEstimate estimate{.n_tensors = plan.tensors.size(),
                         .n_shards = plan.shards.size(),
                         .vocab = plan.vocabulary.rows,
                         .read_bytes = plan.read_bytes,
                         .written_bytes = plan.written_bytes,
                         .memory_bytes = plan.memory_bytes};
  std::map<std::pair<size_t, size_t>, std::pair<const OutputTensor*, size_t>> shapes;
  for (const OutputTensor& tensor : plan.tensors) {
    auto& [sample, n] = shapes.try_emplace({tensor.slot.d_out, tensor.slot.d_in}, &tensor, 0).first->second;
    ++n;
  }
  Gatherer gatherer(pool, plan, sources);
  const SteadyClock clock;
  const int64_t begin_us = clock.NowUs();
  double elements_known = 0, elements_unknown = 0;
  for (const auto& [shape, entry] : shapes) {
    const auto& [tensor, n] = entry;
    const auto elements = static_cast<double>(tensor->elements() * n);
    const int64_t start_us = clock.NowUs();
    if (static_cast<double>(start_us - begin_us) * 1e-6 > max_seconds) {
      elements_unknown += elements;
      continue;
    }
    DF_ASSIGN_OR_RETURN(const TensorGroup group, gatherer.Gather(*tensor));
    DF_RETURN_IF_ERROR(
        Merge(pool, *plan.method, group, tensor->settings, [](size_t, std::span<const float>) {}).status());
    gatherer.Drop(*tensor);
    estimate.seconds += static_cast<double>((clock.NowUs() - start_us) * static_cast<int64_t>(n)) * 1e-6;
    estimate.sample_bytes += tensor->bytes();
    elements_known += elements;
  }
  if (elements_known > 0) estimate.seconds *= 1 + elements_unknown / elements_known;
  return estimate;
}

}  // namespace df::merge
