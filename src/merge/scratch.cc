#include "merge/scratch.h"

#include <filesystem>

#include "base/atomic_file.h"
#include "base/json.h"
#include "base/presence.h"
#include "format/step_journal.h"

namespace df::merge {
namespace {

// Beside the weights: the task that they are of, and the report.
constexpr char kNoteName[] = "/merge_scratch.json";

}  // namespace

std::string ScratchOf(const std::string& target) {
  std::string trimmed = target;
  while (trimmed.size() > 1 && trimmed.back() == '/') trimmed.pop_back();
  return trimmed + ".merged";
}

Result<Json> MergeToScratch(ThreadPool& pool, const Recipe& recipe, const MergeSources& sources,
                            const std::string& target, const MergerOptions& options) {
  const std::string scratch = ScratchOf(target), note_path = scratch + kNoteName;
  DF_ASSIGN_OR_RETURN(const Json task, TaskOf(recipe, sources, options.max_shard_bytes));
  DF_ASSIGN_OR_RETURN(const bool has_note, HasFile(note_path));
  if (has_note && options.resume) {
    DF_ASSIGN_OR_RETURN(const Json note, ReadJsonFile(note_path, {.max_bytes = size_t{256} << 20}));
    const Json* const noted_task = JsonMemberOrNull(note, "task");
    const Json* const report = JsonMemberOrNull(note, "report");
    const std::string difference = FirstDifference(noted_task == nullptr ? Json() : *noted_task, task);
    if (difference.empty() && report != nullptr) return *report;
    if (!options.replace) {
      return FailedPrecondition(scratch + " is of a stopped run that did something else: " + difference +
                                "; run it as it was, or discard it with --force");
    }
  }
  MergerOptions merger_options = options;
  merger_options.replace = options.replace || (options.resume && !has_note);  // finished, and killed before its note
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
