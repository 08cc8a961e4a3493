// The models of a merge: what a recipe names, opened, each giving its tensors one at a time. A full checkpoint shows
// its stored tensors in place; of a delta or an adapter the full tensor is made when it is asked for.
#ifndef DELTAFOLD_MERGE_SOURCES_H_
#define DELTAFOLD_MERGE_SOURCES_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/thread_pool.h"
#include "codec/bound_variant.h"
#include "format/checkpoint.h"
#include "merge/recipe.h"
#include "model/bind.h"
#include "tensor/mat.h"

namespace df::merge {

struct MergeSource {
  std::string argument;  // as the recipe has it
  std::string name;      // for people: a hub id, or the end of a directory's path that no other has
  std::shared_ptr<const Checkpoint> checkpoint;  // the model, or what `variant` changes
  bool checkpoint_is_tied = false;
  std::optional<BoundVariant> variant = {};  // of a delta or an adapter
  std::string variant_directory = {};

  const ModelConfig& config() const { return variant ? variant->config : checkpoint->config(); }
  bool IsTied() const { return variant ? variant->tied : checkpoint_is_tied; }
  // Where its config, tokenizer and the like stand: the second is looked into for what the first lacks.
  const std::string& own_directory() const { return variant ? variant_directory : checkpoint->directory(); }
  const std::string& checkpoint_directory() const { return checkpoint->directory(); }
};

struct MergeSources {
  std::optional<MergeSource> base = {};
  std::vector<MergeSource> models = {};  // in the recipe's order

  // What the output is like in all that is not merged: the base, else the first model.
  const MergeSource& pattern() const { return base ? *base : models.front(); }
};

// Opens everything that `recipe` names: a directory or a hub id of the local cache with a full model, a 1-bit delta of
// the base, an adapter for the base, or "model+adapter". The only errors are those of opening them, kFailedPrecondition
// (a delta or adapter without a full base, a config whose difference to the base's changes the computation), each
// naming the model.
Result<MergeSources> OpenSources(const Recipe& recipe);

// The hub id or the directory's own name, never a path.
std::string NameForPeople(const std::string& argument);

// The slots of the output in the order of computation, with the pattern's rows: tied only where all sources are.
std::vector<Slot> SlotsOfMerge(const MergeSources& sources);

// The tensor of `slot` in `source`, in its own number of rows for embedding and head: in place, or made in `memory`,
// which then is what the view looks at. A tied source has its embedding for its head. The only error is kCorrupt (an
// adapter that scales a row of no length).
Result<TensorView> ReadTensor(ThreadPool& pool, const MergeSource& source, const Slot& slot, Buffer<float>& memory);
// Gives back the mapped pages that reading it took.
void DropTensor(const MergeSource& source, const Slot& slot);
// Lets the disk read them in.
void AnnounceTensor(const MergeSource& source, const Slot& slot);

// kCorrupt naming a file that changed while it was read.
Status CheckIntact(const MergeSources& sources);

// What tells that they are the same in another process: for the task of a resumable run. Errors: of reading files.
Result<Json> IdentityOf(const MergeSources& sources);

}  // namespace df::merge

#endif  // DELTAFOLD_MERGE_SOURCES_H_
