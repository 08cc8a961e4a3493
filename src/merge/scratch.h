// The full checkpoint that stands between a merge and a delta or adapter made of it: written beside the target, kept
// while the work on it is unfinished, told apart from one of another recipe.
#ifndef DELTAFOLD_MERGE_SCRATCH_H_
#define DELTAFOLD_MERGE_SCRATCH_H_

#include <optional>
#include <string>

#include "merge/merger.h"

namespace df::merge {

// Where it stands for a delta or adapter at `target`.
std::string ScratchOf(const std::string& target);

// Merges into ScratchOf(target), or finds there what a stopped run of the same recipe and inputs finished: then, with
// `options.resume`, nothing is done, and what is returned is that run's report as ToJson has it. With `options.replace`
// an unfinished or other one is discarded. A directory there that no merge made is never touched: kFailedPrecondition,
// as where one is there and neither resume nor replace is set. Errors: of MergeModels.
Result<Json> MergeToScratch(ThreadPool& pool, const Recipe& recipe, const MergeSources& sources,
                            const std::string& target, const MergerOptions& options);

// Removes it, when the target is done. kIo.
Status RemoveScratch(const std::string& target);

}  // namespace df::merge

#endif  // DELTAFOLD_MERGE_SCRATCH_H_
