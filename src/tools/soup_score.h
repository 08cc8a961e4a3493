// How good a checkpoint is, as one number: by a command, by a file that the trainer wrote into it, or by our own
// evaluation.
#ifndef DELTAFOLD_TOOLS_SOUP_SCORE_H_
#define DELTAFOLD_TOOLS_SOUP_SCORE_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/json.h"
#include "base/status.h"

namespace df::tools {

// What to measure by. At most one of `command`, `text_file` and `questions_file`, which measure any checkpoint; a
// metric file measures those that the trainer wrote, and those alone. Both: the other is for merged ones, and must give
// the same figure.
struct ScoreOptions {
  // A shell command in which {model} stands for the checkpoint's directory, quoted; the score is the last number that
  // it prints to stdout.
  std::string command = {};
  double command_timeout_s = 3600;

  // A JSON file in each checkpoint, and where in it the score stands: keys and list indices (negative from the end)
  // joined by dots. Where there is no such key, but a list "log_history" (trainer_state.json), its last entry with it.
  std::string metric_file = {}, metric = {};

  std::string text_file = {};       // perplexity
  std::string questions_file = {};  // exact match in percent, or
  bool by_cross_entropy = false;    // of questions: nats a token of the reference answers, nothing is generated
  size_t n_items = 0;               // questions, 0 = all
  size_t text_tokens = 16384, window_tokens = 512;

  std::optional<bool> higher_is_better = {};  // required for a command and a metric file, known of the others
  std::string base = {};  // full model: what adapters are measured on, and the tokenizer of checkpoints without one
  size_t n_threads = 0;   // 0 = UsableCpus()
  // What is being done, and how far; false ends with kCancelled. May be empty.
  std::function<bool(const std::string& what, uint64_t done, uint64_t total)> on_progress = {};
};

// Thread-compatible.
class SoupScorer {
 public:
  // Reads text and questions once to see whether they can be. The only errors are kInvalidArgument (nothing to measure
  // by, or too much; no direction, or the wrong one) and those of reading the files.
  static Result<SoupScorer> Create(ScoreOptions options);

  bool CanMeasureMerged() const { return !options_.command.empty() || HasOwn(); }
  bool higher_is_better() const { return higher_is_better_; }
  // NaN is never better, and worse than every number.
  bool IsBetter(double score, double than) const;
  std::string name() const;  // "perplexity of text.txt"
  // Tells whether scores of two runs can be compared: what is measured, and digests of the files.
  const Json& identity() const { return identity_; }

  // The score of a full model or an adapter, NaN and infinities included. `what` is for messages and progress. The only
  // errors are RunCommand's, kFailedPrecondition (a command that prints no number), those of the metric file, naming
  // file and key, of EvaluateSubject, and kCancelled.
  Result<double> OfTrained(const std::string& directory, const std::string& what) const;
  Result<double> OfMerged(const std::string& directory, const std::string& what) const;

 private:
  explicit SoupScorer(ScoreOptions options) : options_(std::move(options)) {}
  bool HasOwn() const { return !options_.text_file.empty() || !options_.questions_file.empty(); }
  Status CheckChoice();
  Status ReadFiles();
  Result<double> ByCommand(const std::string& directory, const std::string& what) const;
  Result<double> ByMetricFile(const std::string& directory) const;
  Result<double> ByEvaluation(const std::string& directory, const std::string& what) const;

  ScoreOptions options_;
  bool higher_is_better_ = false;
  std::string text_;
  Json identity_ = Json::object();
};

// What stands at `path` of `file`, as ScoreOptions says. The only error is kFailedPrecondition: nothing does, or no
// number; the strings "nan", "inf" and "-inf" in any case, and null, count as no finite number (NaN).
Result<double> MetricAt(const Json& file, const std::string& path);

}  // namespace df::tools

#endif  // DELTAFOLD_TOOLS_SOUP_SCORE_H_
