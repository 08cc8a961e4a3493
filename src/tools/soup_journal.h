// What a soup remembers: a file of JSON lines, each on the disk before what it tells of is acted upon. It is the curve
// for people and the state for the next process; a line cut short by a kill is one that was never written.
//
//   {"event": "soup", "version": 1, "base": NAME, "score": {...}}                  first: what scores can be compared
//   {"event": "score", "checkpoint": N, "step": S, "stamp": D, "method": M, "score": X | null}     no method: the
//   newest
//   {"event": "step", "checkpoint": N, "step": S, "stamp": D, "newest": X, "merged": X | null, "kept": K, "best": X,
//    "directory": P, "method": M, "note": T, "seconds": T}
//   {"event": "skip", "checkpoint": N, "step": S, "stamp": D, "reason": T}
#ifndef DELTAFOLD_TOOLS_SOUP_JOURNAL_H_
#define DELTAFOLD_TOOLS_SOUP_JOURNAL_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/append_file.h"
#include "base/json.h"

namespace df::tools {

enum class Kept { kBest, kNewest, kMerged };  // what stood before, or one of the two that came
std::string_view KeptName(Kept kept);         // "best", "newest", "merged"

struct CheckpointId {
  std::string name = {};
  uint64_t step = 0;
  std::string stamp = {};
  bool operator==(const CheckpointId&) const = default;
};

// A checkpoint that was taken. Scores that are no finite number are absent.
struct SoupStep {
  CheckpointId checkpoint = {};
  std::optional<double> newest = {}, merged = {};
  Kept kept = Kept::kBest;
  std::optional<double> best = {};  // afterwards; absent: there is none yet
  std::string directory = {};       // of the best, below the soup's; empty without
  std::string method = {};          // by which it was merged; empty: it was not
  std::string note = {};            // why something is absent; empty: nothing is
  double seconds = 0;
};

struct SoupSkip {
  CheckpointId checkpoint = {};
  std::string reason = {};
};

// Of a checkpoint that was not finished: what need not be measured again. A score that is no finite number is NaN.
struct OpenStep {
  CheckpointId checkpoint = {};
  std::optional<double> newest = {}, merged = {};
  std::string method = {};  // of `merged`
};

struct SoupRecords {
  std::vector<SoupStep> steps;
  std::vector<SoupSkip> skips;
  std::optional<OpenStep> open;
};

// Thread-compatible.
class SoupJournal {
 public:
  static constexpr char kFileName[] = "soup.jsonl";

  // Opens `path`, or begins it with `header`. The only errors are kFailedPrecondition (a header that differs, saying in
  // what), kCorrupt (a line that is none of these, by number; but for a last one without its end, which is cut off),
  // kResourceExhausted (over 64 MiB) and kIo.
  static Result<SoupJournal> Open(const std::string& path, const Json& header);

  const SoupRecords& records() const { return records_; }

  // On the disk when they return ok.
  // `method`: of a merged checkpoint; empty: the checkpoint itself.
  Status AddScore(const CheckpointId& checkpoint, const std::string& method, double score);
  Status AddStep(const SoupStep& step);
  Status AddSkip(const SoupSkip& skip);

 private:
  SoupJournal(AppendFile file, SoupRecords records) : file_(std::move(file)), records_(std::move(records)) {}
  Status Append(const Json& line);

  AppendFile file_;
  SoupRecords records_;
};

Json ToJson(const SoupStep& step);
Json ToJson(const SoupSkip& skip);

}  // namespace df::tools

#endif  // DELTAFOLD_TOOLS_SOUP_JOURNAL_H_
