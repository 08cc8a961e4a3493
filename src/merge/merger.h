// Carries out a recipe: streams over the tensors of all models and writes a full checkpoint.
#ifndef DELTAFOLD_MERGE_MERGER_H_
#define DELTAFOLD_MERGE_MERGER_H_

#include <functional>
#include <optional>
#include <string>

#include "base/thread_pool.h"
#include "codec/full_checkpoint.h"
#include "codec/materialize.h"
#include "merge/plan.h"
#include "merge/recipe.h"
#include "merge/report.h"
#include "merge/sources.h"

namespace df::merge {

struct MergerOptions {
  uint64_t max_shard_bytes = kMaxShardBytes;
  bool replace = false;  // an existing directory, and what a stopped run left
  bool resume = false;   // go on with what a stopped run of the same recipe left, if there is anything
  // Name of a JSON file beside the weights that says of which task they are (`task`); it comes with them, and only what
  // holds it is replaced. Empty: no such file, and what holds a config.json is.
  std::string note_name = {};
  // What a kill costs at most, in bytes written and in seconds.
  uint64_t step_bytes = uint64_t{1} << 30;
  double step_seconds = 5;
  std::function<bool(const StreamProgress&)> on_progress = {};  // before every tensor; false stops with kCancelled
};

// Writes `target`, which appears whole or not at all: weights in shards, config.json, tokenizer, chat template,
// generation config, README.md with the recipe. A run that was killed, or stopped by on_progress, leaves what it did
// beside it, to be resumed with the same recipe, inputs and shards; the bytes are then those of a run that was not
// stopped. Anonymous memory: PlanMerge's memory_bytes, and some hundred KiB a thread. The mapped pages of a tensor are
// given back behind it. The bytes depend on inputs and recipe alone, by methods with singular values also on the
// processor's instruction set. opcm takes 4 bytes a weight of disk besides, until it is done.
//
// The only errors are those of PlanMerge and Merge (method.h), kFailedPrecondition (the target exists or is being
// written; what a stopped run left is in the way or of another recipe; a value overflows the dtype), kCorrupt (an input
// changed while it was read), kIo and kCancelled.
Result<MergeReport> MergeModels(ThreadPool& pool, const Recipe& recipe, const MergeSources& sources,
                                const std::string& target, const MergerOptions& options);

// What MergeModels would take: from the plan, and from tensors that are merged and thrown away, one of each shape until
// `max_seconds` have passed.
struct MergeEstimate {
  size_t n_tensors = 0, n_shards = 0, vocab = 0;
  uint64_t read_bytes = 0, written_bytes = 0, memory_bytes = 0;
  double seconds = 0;
  uint64_t sample_bytes = 0;  // that the time is taken from, read and written
};
Result<MergeEstimate> EstimateMerge(ThreadPool& pool, const Recipe& recipe, const MergeSources& sources,
                                    uint64_t max_shard_bytes, double max_seconds = 3);

// What is made from what: a run goes on with the steps of an equal one only. Errors: of IdentityOf.
Result<Json> TaskOf(const Recipe& recipe, const MergeSources& sources, uint64_t max_shard_bytes);

// The recipe with the sources' names for people in place of what was given.
Recipe NamedRecipe(const Recipe& recipe, const MergeSources& sources);

}  // namespace df::merge

#endif  // DELTAFOLD_MERGE_MERGER_H_
