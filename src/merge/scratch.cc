#include "merge/scratch.h"

#include <filesystem>

#include "base/atomic_file.h"
#include "base/json.h"
#include "base/presence.h"
#include "format/step_journal.h"

namespace df::merge {
namespace {

// Beside the weights: the task that they are of, with them; the report, when all else is done.
constexpr char kNoteName[] = "merge_scratch.json";

// What stands at `scratch` is of a merge and may be gone on with, or discarded: without a note it is somebody's own.
Status CheckScratch(const std::string& scratch, bool has_note, const MergerOptions& options) {
  std::error_code ignored;  // an unreadable path fails later with its own message
  if (!std::filesystem::exists(std::filesystem::symlink_status(scratch, ignored))) return Status::Ok();
  if (!has_note) {
    return FailedPrecondition(scratch +
                              " is in the way: the merge stands there until it is coded, and what is there is no "
                              "stopped run's (no " +
                              kNoteName + "); move it, or choose another --out");
  }
  if (options.resume || options.replace) return Status::Ok();
  return FailedPrecondition(scratch +
                            " is what a stopped run merged; go on with it by --resume, or discard it with --force");
}

}  // namespace

std::string ScratchOf(const std::string& target) {
  std::string trimmed = target;
  while (trimmed.size() > 1 && trimmed.back() == '/') trimmed.pop_back();
  return trimmed + ".merged";
}

Result<Json> MergeToScratch(ThreadPool& pool, const Recipe& recipe, const MergeSources& sources,
                            const std::string& target, const MergerOptions& options) {
  const std::string scratch = ScratchOf(target), note_path = scratch + "/" + kNoteName;
  DF_ASSIGN_OR_RETURN(const Json task, TaskOf(recipe, sources, options.max_shard_bytes));
  DF_ASSIGN_OR_RETURN(const bool has_note, HasFile(note_path));
  DF_RETURN_IF_ERROR(CheckScratch(scratch, has_note, options));
  if (has_note && options.resume) {
    DF_ASSIGN_OR_RETURN(const Json note, ReadJsonFile(note_path, {.max_bytes = size_t{256} << 20}));
    const Json* const noted_task = JsonMemberOrNull(note, "task");
    const Json* const report = JsonMemberOrNull(note, "report");
    const std::string difference = FirstDifference(noted_task == nullptr ? Json() : *noted_task, task);
    if (difference.empty() && report != nullptr) return *report;
    if (!difference.empty() && !options.replace) {
      return FailedPrecondition(scratch + " is of a stopped run that did something else: " + difference +
                                "; run it as it was, or discard it with --force");
    }
  }
  MergerOptions merger_options = options;
  merger_options.note_name = kNoteName;
  merger_options.replace = options.replace || options.resume;  // this task's, killed before its report
  DF_ASSIGN_OR_RETURN(const MergeReport report, MergeModels(pool, recipe, sources, scratch, merger_options));
  Json json = ToJson(report);
  DF_RETURN_IF_ERROR(WriteFileAtomically(note_path, DumpJson({{"task", task}, {"report", json}}) + "\n"));
  return json;
}

Status RemoveScratch(const std::string& target) {
  std::error_code error;
  std::filesystem::remove_all(ScratchOf(target), error);
  return error ? IoError("cannot remove " + ScratchOf(target), error.value()) : Status::Ok();
}

}  // namespace df::merge
