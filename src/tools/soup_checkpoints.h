// The checkpoints that a trainer has written so far: which are whole, in which order, and why others are not looked at.
#ifndef DELTAFOLD_TOOLS_SOUP_CHECKPOINTS_H_
#define DELTAFOLD_TOOLS_SOUP_CHECKPOINTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace df::tools {

struct FoundCheckpoint {
  std::string name = {};       // of its directory
  std::string directory = {};  // full path
  uint64_t step = 0;
  std::string stamp =
      {};  // digest of names, sizes and times of its weights and configs: another content, another stamp
};

struct WaitingCheckpoint {
  std::string name = {}, reason = {};
  bool is_settling = false;  // whole, but written to a moment ago
};

struct FoundCheckpoints {
  std::vector<FoundCheckpoint> complete;   // ascending by step, then by name
  std::vector<WaitingCheckpoint> waiting;  // ascending by name
};

struct FindOptions {
  std::string except = {};  // a directory that is none, though it stands there
  double settle_s = 2;      // nothing of a checkpoint was written for so long
  // After so long without a change a checkpoint-N without trainer_state.json counts as one of a program that writes
  // none.
  double stateless_s = 60;
};

// The sub-directories of `directory` that hold a model or an adapter (format/variant_kind.h), by the last number in
// their names. Names that start with "." or "tmp-" are a writer's own. Complete is one whose files are all there with
// the sizes that their headers and index say, in which nothing changed for `settle_s`; and of "checkpoint-N", the
// layout of transformers' Trainer, trainer_state.json, which it writes last. What vanishes while it is looked at is not
// there. The only errors are kNotFound and kFailedPrecondition (no such directory; not one) and kIo.
Result<FoundCheckpoints> FindCheckpoints(const std::string& directory, const FindOptions& options);

// Whether `checkpoint` is still what was found.
bool IsUnchanged(const FoundCheckpoint& checkpoint);

}  // namespace df::tools

#endif  // DELTAFOLD_TOOLS_SOUP_CHECKPOINTS_H_
