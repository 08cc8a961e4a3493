#include "merge/output.h"

#include <algorithm>
#include <filesystem>

#include "codec/row_ops.h"

namespace df::merge {
namespace {

// Written at once: half a megabyte of bf16. A file system takes 32 KiB, what methods give in one call, at two thirds of
// the speed; a thread's piece stays in its second cache.
constexpr size_t kPieceElements = size_t{1} << 18;
// The disk begins with what is written after so many bytes.
constexpr uint64_t kStartBytes = uint64_t{64} << 20;
// What may wait for the disk before the merge does: as many steps, which cost their share of the room.
constexpr uint64_t kBehindRoom = 1 << 10, kStepsBehind = 8;

// "pt" is what the reference implementation wants to read before it loads a file.
Result<PlacedSafetensors> OpenShard(const std::string& directory, const OutputShard& shard) {
  return PlacedSafetensors::Open(directory + "/" + shard.file_name, shard.specs, {{"format", "pt"}});
}

AtomicDirectory::Options TargetOptions(const OutputOptions& options) {
  return {.replace = options.replace,
          .mark = options.note_name.empty() ? "config.json" : options.note_name,
          .inputs = options.inputs,
          .journal = StepJournal::kFileName};
}

// What is neither journal nor shard was begun after the last step, and will be again.
Status RemoveUnfinished(const std::string& directory, const MergePlan& plan) {
  std::error_code error;
  for (std::filesystem::directory_iterator entries(directory, error);
       !error && entries != std::filesystem::directory_iterator(); entries.increment(error)) {
    const std::string name = entries->path().filename().string();
    const auto is_it = [&](const OutputShard& shard) { return shard.file_name == name; };
    if (name == StepJournal::kFileName || name == StepJournal::kSpoolName || std::ranges::any_of(plan.shards, is_it)) {
      continue;
    }
    std::filesystem::remove_all(entries->path(), error);
    if (error) break;
  }
  return error ? IoError("cannot empty " + directory, error.value()) : Status::Ok();
}

}  // namespace

void TensorSink::Take(size_t first, std::span<const float> values) {
  std::unique_ptr<Run> run;
  {
    const std::scoped_lock lock(mutex_);
    const auto found = runs_.find(first);
    if (found != runs_.end()) {
      run = std::move(found->second);
      runs_.erase(found);
    }
  }
  if (run == nullptr) {
    run = std::make_unique<Run>();
    run->first = first;
    run->bytes.resize(kPieceElements * DTypeBytes(tensor_.dtype));
  }
  for (size_t done = 0; done < values.size();) {
    const size_t n = std::min(values.size() - done, kPieceElements - run->size);
    Append(*run, values.subspan(done, n));
    done += n;
  }
  const std::scoped_lock lock(mutex_);
  runs_[first + values.size()] = std::move(run);
}

void TensorSink::Append(Run& run, std::span<const float> values) {
  // relaxed: whoever merges waits for all threads before Finish
  uint8_t* const to = run.bytes.data() + run.size * DTypeBytes(tensor_.dtype);
  if (!row_ops::Narrow(values, tensor_.dtype, to)) fits_.store(false, std::memory_order_relaxed);
  run.size += values.size();
  if (run.size == kPieceElements) Write(run);
}

void TensorSink::Write(Run& run) {
  const size_t element_bytes = DTypeBytes(tensor_.dtype);
  Status written =
      file_.Write(tensor_.place, run.first * element_bytes, Bytes(run.bytes.data(), run.size * element_bytes));
  run.first += run.size;
  run.size = 0;
  if (written.ok()) return;
  const std::scoped_lock lock(mutex_);
  if (status_.ok()) status_ = std::move(written);
}

Status TensorSink::Finish() {
  for (auto& [next, run] : runs_) {
    if (run->size > 0) Write(*run);
  }
  runs_.clear();
  DF_RETURN_IF_ERROR(status_);
  if (fits_.load(std::memory_order_relaxed)) return Status::Ok();
  return FailedPrecondition("tensor " + tensor_.slot.name + " overflows " + std::string(DTypeName(tensor_.dtype)) +
                            "; choose another out_dtype");
}

MergeOutput::MergeOutput(AtomicDirectory directory, StepJournal journal, const MergePlan& plan, OutputOptions options)
    : directory_(std::move(directory)),
      journal_(std::move(journal)),
      plan_(plan),
      options_(std::move(options)),
      behind_(kBehindRoom) {
  step_began_us_ = clock_.NowUs();
}

Result<std::unique_ptr<MergeOutput>> MergeOutput::Continue(AtomicDirectory left, const MergePlan& plan,
                                                           OutputOptions options) {
  DF_ASSIGN_OR_RETURN(StepJournal journal, StepJournal::Reopen(left.path()));
  const std::string difference = FirstDifference(journal.task(), options.task);
  if (!difference.empty()) {
    return FailedPrecondition("the run that was stopped did something else: " + difference +
                              "; run it as it was, or discard what it left (" + left.path() + ") with --force");
  }
  DF_RETURN_IF_ERROR(RemoveUnfinished(left.path(), plan));
  std::unique_ptr<MergeOutput> output(new MergeOutput(std::move(left), std::move(journal), plan, std::move(options)));
  for (const Json& step : output->journal_.notes()) {
    if (!step.is_array())
      return Corrupt(output->path() + "/" + StepJournal::kFileName + " holds a step that is none of ours");
    for (const Json& note : step) output->done_notes_.push_back(note);
  }
  DF_RETURN_IF_ERROR(output->OpenShards());
  // A shard that is not as the notes have it was damaged: begin again.
  const bool all_there = std::ranges::all_of(output->shards_, &PlacedSafetensors::was_there);
  if (!all_there && !output->done_notes_.empty()) {
    return Corrupt("a shard in " + output->path() +
                   " is not what the journal beside it tells of; discard it with --force");
  }
  output->directory_.Keep(false);
  return output;
}

Result<std::unique_ptr<MergeOutput>> MergeOutput::Create(const std::string& target, const MergePlan& plan,
                                                         OutputOptions options) {
  const AtomicDirectory::Options directory_options = TargetOptions(options);
  if (options.resume) {
    DF_ASSIGN_OR_RETURN(std::optional<AtomicDirectory> left, AtomicDirectory::TakeOver(target, directory_options));
    if (left) return Continue(std::move(*left), plan, std::move(options));
  }
  DF_ASSIGN_OR_RETURN(AtomicDirectory made, AtomicDirectory::Create(target, directory_options));
  DF_ASSIGN_OR_RETURN(StepJournal journal, StepJournal::Create(made.path(), options.task));
  std::unique_ptr<MergeOutput> output(new MergeOutput(std::move(made), std::move(journal), plan, std::move(options)));
  DF_RETURN_IF_ERROR(output->OpenShards());
  return output;
}

Status MergeOutput::OpenShards() {
  for (const OutputShard& shard : plan_.shards) {
    DF_ASSIGN_OR_RETURN(PlacedSafetensors file, OpenShard(path(), shard));
    shards_.push_back(std::move(file));
  }
  return Status::Ok();
}

std::unique_ptr<TensorSink> MergeOutput::SinkFor(const OutputTensor& tensor) const {
  return std::make_unique<TensorSink>(shards_[tensor.shard], tensor);
}

Status MergeOutput::EndTensor(const OutputTensor& tensor, Json note) {
  open_notes_.push_back(std::move(note));
  open_bytes_ += tensor.bytes();
  started_bytes_ += tensor.bytes();
  if (started_bytes_ >= kStartBytes) {
    started_bytes_ = 0;
    // Also this may wait, where the disk has more in hand than it takes.
    DF_RETURN_IF_ERROR(behind_.Do(1, [&shard = shards_[tensor.shard]] {
      shard.StartSync();
      return Status::Ok();
    }));
  }
  const auto seconds = static_cast<double>(clock_.NowUs() - step_began_us_) * 1e-6;
  if (open_bytes_ < options_.step_bytes && seconds < options_.step_seconds) return Status::Ok();
  return EndStep();
}

Status MergeOutput::EndStep() {
  if (open_notes_.empty()) return Status::Ok();
  Json notes = Json::array();
  std::swap(notes, open_notes_);
  open_bytes_ = 0;
  step_began_us_ = clock_.NowUs();
  return behind_.Do(kBehindRoom / kStepsBehind, [this, notes = std::move(notes)]() -> Status {
    for (const PlacedSafetensors& shard : shards_) DF_RETURN_IF_ERROR(shard.Sync());
    return journal_.EndStep(notes);
  });
}

Status MergeOutput::Keep(Bytes data, Json note) {
  DF_RETURN_IF_ERROR(behind_.Finish());
  DF_RETURN_IF_ERROR(journal_.Append(data));
  Json notes = Json::array();
  notes.push_back(std::move(note));
  return journal_.EndStep(notes);
}

void MergeOutput::KeepForResume() {
  if (!EndStep().ok() || !behind_.Finish().ok()) return;  // then those tensors are made again
  directory_.Keep(journal_.has_steps());
}

Status MergeOutput::Commit() {
  DF_RETURN_IF_ERROR(behind_.Finish());
  for (const PlacedSafetensors& shard : shards_) DF_RETURN_IF_ERROR(shard.Sync());
  if (!options_.note_name.empty()) {
    DF_RETURN_IF_ERROR(
        WriteFileAtomically(directory_.path() + "/" + options_.note_name, DumpJson({{"task", options_.task}}) + "\n"));
  }
  DF_RETURN_IF_ERROR(journal_.Remove());
  return directory_.Commit();
}

}  // namespace df::merge
