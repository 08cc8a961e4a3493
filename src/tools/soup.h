// A soup during training: each checkpoint that a trainer writes is merged with the best so far, both are measured, and
// the best of the three is kept.
//
//   OUT/best          a link to the best checkpoint, replaced by rename: whoever follows it finds a whole one
//   OUT/checkpoints/  the best (NNNN-step-S, a copy of the trainer's, or NNNN-step-S-merged), and what is in work
//   OUT/soup.jsonl    the curve and the state (soup_journal.h)
//
// The line of a step in soup.jsonl is what makes it done. Until then the old best stands, after it the link is moved
// and the old best removed, by this process or the next: a kill at any moment leaves the old state or the new one, and
// nothing that was measured is measured again.
#ifndef DELTAFOLD_TOOLS_SOUP_H_
#define DELTAFOLD_TOOLS_SOUP_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "merge/recipe.h"
#include "tools/soup_checkpoints.h"
#include "tools/soup_journal.h"
#include "tools/soup_score.h"
#include "tools/svg_plot.h"

namespace df::tools {

struct SoupMethod {
  std::string name = "svd_average";  // of merge/method.h; '-' counts as '_'
  // Values by name: one, or of those that each model has two, the best's and the newest's. What is not given and would
  // be required counts both models alike (weight 0.5, t 0.5); svd_average without rank and energy keeps `kSoupEnergy`.
  std::map<std::string, std::vector<double>> parameters = {};
  std::optional<DType> out_dtype = {};  // absent: as in the base
};
inline constexpr double kSoupEnergy = 0.99;

struct SoupOptions {
  std::string out = {};
  std::string base = {};  // directory or hub id; empty for methods that need none
  SoupMethod method = {};
  ScoreOptions score = {};
  bool keep_all = false;  // also those that were the best once
  size_t n_threads = 0;   // 0 = UsableCpus()
  // What is being done, and how far; false ends with kCancelled. Also called between two things that reach the disk.
  // May be empty.
  std::function<bool(const std::string& what, uint64_t done, uint64_t total)> on_progress = {};
};

// The recipe by which `newest` is merged with `best`, both directories. Errors: of CompleteRecipe, and kInvalidArgument
// (two values of a parameter that is not of each model, more than two).
Result<merge::Recipe> SoupRecipe(const SoupMethod& method, const std::string& base, const std::string& best,
                                 const std::string& newest);

// The method with its parameters in one line, those included that were not given.
std::string MethodText(const SoupMethod& method);

// What has become of a checkpoint: one of the two.
struct TakenCheckpoint {
  std::optional<SoupStep> step = {};
  std::optional<SoupSkip> skip = {};
};

// Thread-compatible; one at a time for an `out`, which is locked.
class Soup {
 public:
  // Makes `out` or goes on with what is there. The only errors are kInvalidArgument (a method, parameter or measure
  // that cannot be), those of opening the base, kFailedPrecondition (`out` is in use, holds something else, or a soup
  // with other scores), kCorrupt (its journal) and kIo.
  static Result<std::unique_ptr<Soup>> Open(SoupOptions options);
  ~Soup();
  Soup(const Soup&) = delete;
  Soup& operator=(const Soup&) = delete;

  // Whether this very checkpoint was taken or skipped.
  bool IsKnown(const FoundCheckpoint& checkpoint) const;
  // Merges, measures, keeps. A checkpoint that cannot be read, or vanishes meanwhile, is skipped and remembered so; one
  // whose score is no finite number is neither merged nor kept. A merge that fails (other shapes, a value that
  // overflows) leaves the checkpoint itself to be kept. The only errors are those of measuring, kIo and kCancelled: all
  // leave a state from which the same checkpoint is taken again.
  Result<TakenCheckpoint> Take(const FoundCheckpoint& checkpoint);
  // A checkpoint that was begun and whose directory is gone is skipped.
  Result<std::optional<SoupSkip>> SkipVanished(const std::vector<FoundCheckpoint>& found);

  // kCancelled when on_progress says so.
  Status Wait() const { return Say("waiting"); }

  const std::vector<SoupStep>& steps() const { return journal_.records().steps; }
  const std::vector<SoupSkip>& skips() const { return journal_.records().skips; }
  // The last step that left a best; null before the first.
  const SoupStep* BestOrNull() const;
  std::string BestDirectory() const;  // OUT/checkpoints/...; there is a best
  const SoupScorer& scorer() const { return scorer_; }

 private:
  Soup(SoupOptions options, SoupScorer scorer, SoupJournal journal, int lock_fd);

  Status Say(const std::string& what, uint64_t done = 0, uint64_t total = 1) const;
  std::string TargetOf(const CheckpointId& checkpoint, Kept kept) const;
  Result<double> ScoreOf(const FoundCheckpoint& checkpoint);
  Status MergeInto(const FoundCheckpoint& checkpoint, const std::string& target);
  Result<std::optional<double>> MergedScore(const FoundCheckpoint& checkpoint, SoupStep& step);
  Status Measure(const FoundCheckpoint& checkpoint, SoupStep& step);
  Status CopyNewest(const FoundCheckpoint& checkpoint, const std::string& target) const;
  Status Keep(const FoundCheckpoint& checkpoint, SoupStep& step);
  Result<TakenCheckpoint> Skip(const FoundCheckpoint& checkpoint, const std::string& reason);
  Status MoveLink() const;
  Status Tidy() const;

  SoupOptions options_;
  SoupScorer scorer_;
  SoupJournal journal_;
  std::string method_text_;
  int lock_fd_ = -1;
  ThreadPool pool_;
};

struct WatchOptions {
  std::string directory = {};
  uint64_t every = 0;  // steps between checkpoints that are taken; those between are passed over
  bool once = false;   // take what is there and end
  double poll_s = 5;
  double idle_s = 0;  // end when nothing came for so long; 0 = never
  FindOptions find = {};
  std::function<Status(const TakenCheckpoint& taken)> on_taken = {};  // its failure ends the watch
};

// Takes the checkpoints of a directory in the order of their steps, as they come. Returns those that are not whole in
// the end. Errors: of FindCheckpoints, Take and on_taken; kCancelled when Soup's on_progress said so.
Result<std::vector<WaitingCheckpoint>> WatchCheckpoints(Soup& soup, const WatchOptions& options);

// Scores of newest, merged and best over the steps.
Plot PlotOf(const std::vector<SoupStep>& steps, const std::string& score_name);

}  // namespace df::tools

#endif  // DELTAFOLD_TOOLS_SOUP_H_
