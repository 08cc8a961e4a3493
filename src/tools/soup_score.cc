#include "tools/soup_score.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <limits>

#include "base/atomic_file.h"
#include "base/presence.h"
#include "eval/evaluate.h"
#include "format/digest.h"
#include "format/variant_kind.h"
#include "text/model_text.h"
#include "tools/bounded_command.h"

namespace df::tools {
namespace {

namespace fs = std::filesystem;

constexpr char kModelMark[] = "{model}";
constexpr size_t kMaxMetricBytes = size_t{64} << 20;  // a trainer's log of a long run
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

std::string FileName(const std::string& path) { return fs::path(path).filename().string(); }

std::string DigestOf(const std::string& content) {
  Digest digest;
  digest.AddText(content);
  return digest.Hex();
}

std::string WithModel(const std::string& command, const std::string& directory) {
  const std::string quoted = ShellQuoted(directory);
  std::string text = command;
  for (size_t at = text.find(kModelMark); at != std::string::npos; at = text.find(kModelMark, at + quoted.size())) {
    text.replace(at, sizeof(kModelMark) - 1, quoted);
  }
  return text;
}

// Null where there is nothing.
const Json* Descend(const Json& from, const std::string& path) {
  if (from.is_object() && from.contains(path)) return &from[path];  // keys may have dots: "eval/ppl.all"
  const Json* at = &from;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t dot = std::min(path.find('.', begin), path.size());
    const std::string part = path.substr(begin, dot - begin);
    begin = dot + 1;
    if (at->is_object()) {
      if (!at->contains(part)) return nullptr;
      at = &(*at)[part];
      continue;
    }
    int64_t index = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), index);
    if (!at->is_array() || error != std::errc() || end != part.data() + part.size()) return nullptr;
    const auto size = static_cast<int64_t>(at->size());
    if (index < -size || index >= size) return nullptr;
    at = &(*at)[static_cast<size_t>(index < 0 ? index + size : index)];
  }
  return at;
}

const Json* LastOfLog(const Json& file, const std::string& path) {
  const Json* const log = file.is_object() ? JsonMemberOrNull(file, "log_history") : nullptr;
  if (log == nullptr || !log->is_array()) return nullptr;
  for (auto entry = log->rbegin(); entry != log->rend(); ++entry) {
    if (const Json* const found = Descend(*entry, path)) return found;
  }
  return nullptr;
}

// Python writes NaN and Infinity, which are no JSON, where nothing but a bare value can stand: as null.
std::string WithoutNonFinite(std::string text) {
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (in_string && text[i] == '\\') {
      ++i;
    } else if (text[i] == '"') {
      in_string = !in_string;
    } else if (!in_string) {
      for (const std::string_view word : {"NaN", "-Infinity", "Infinity"}) {
        if (text.compare(i, word.size(), word) == 0) text.replace(i, word.size(), "null");
      }
    }
  }
  return text;
}

}  // namespace

Result<double> MetricAt(const Json& file, const std::string& path) {
  const Json* found = Descend(file, path);
  if (found == nullptr) found = LastOfLog(file, path);
  if (found == nullptr) return FailedPrecondition("there is no \"" + path + "\"");
  if (found->is_number()) return found->get<double>();
  if (found->is_null()) return kNaN;
  if (found->is_string()) {
    std::string word = found->get<std::string>();
    std::ranges::transform(word, word.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    if (word == "nan" || word == "inf" || word == "-inf" || word == "infinity" || word == "-infinity") return kNaN;
  }
  return FailedPrecondition("\"" + path + "\" is no number: " + DumpJson(*found).substr(0, 100));
}

Result<SoupScorer> SoupScorer::Create(ScoreOptions options) {
  SoupScorer scorer(std::move(options));
  DF_RETURN_IF_ERROR(scorer.CheckChoice());
  DF_RETURN_IF_ERROR(scorer.ReadFiles());
  return scorer;
}

Status SoupScorer::CheckChoice() {
  const ScoreOptions& o = options_;
  const int n_measures =
      (o.command.empty() ? 0 : 1) + (o.text_file.empty() ? 0 : 1) + (o.questions_file.empty() ? 0 : 1);
  if (n_measures > 1) return InvalidArgument("measure by a command, a text or questions, not by several of them");
  if (n_measures == 0 && o.metric_file.empty()) {
    return InvalidArgument("nothing to measure checkpoints by: give a command, a text, questions or a metric file");
  }
  if (!o.metric_file.empty() && (o.metric.empty() || o.metric_file.find('/') != std::string::npos)) {
    return InvalidArgument("a metric file is the name of a file in each checkpoint, and has a key for the score");
  }
  if (!o.command.empty() && o.command.find(kModelMark) == std::string::npos) {
    return InvalidArgument("the command does not say where the checkpoint goes: write {model} in it");
  }
  if (!HasOwn()) {
    if (!o.higher_is_better) return InvalidArgument("say whether lower or higher scores are better");
    higher_is_better_ = *o.higher_is_better;
    return Status::Ok();
  }
  higher_is_better_ = !o.questions_file.empty() && !o.by_cross_entropy;
  if (o.higher_is_better.value_or(higher_is_better_) != higher_is_better_) {
    return InvalidArgument("of " + name() + " " + (higher_is_better_ ? "higher" : "lower") + " is better");
  }
  return Status::Ok();
}

Status SoupScorer::ReadFiles() {
  identity_["better"] = higher_is_better_ ? "higher" : "lower";
  if (!options_.metric_file.empty()) identity_["metric"] = options_.metric_file + ": " + options_.metric;
  if (!options_.command.empty()) identity_["command"] = options_.command;
  if (!options_.text_file.empty()) {
    DF_ASSIGN_OR_RETURN(text_, ReadFileBounded(options_.text_file, eval::kMaxTaskBytes));
    if (text_.empty()) return InvalidArgument("nothing to measure perplexity on: " + options_.text_file + " is empty");
    identity_["text"] = DigestOf(text_);
    identity_["tokens"] = options_.text_tokens;
    identity_["window"] = options_.window_tokens;
  }
  if (!options_.questions_file.empty()) {
    DF_ASSIGN_OR_RETURN(const auto questions, eval::ReadQuestions(options_.questions_file, options_.n_items));
    if (questions.empty()) return FailedPrecondition(options_.questions_file + " has no questions");
    DF_ASSIGN_OR_RETURN(const std::string content, ReadFileBounded(options_.questions_file, eval::kMaxTaskBytes));
    identity_["questions"] = DigestOf(content);
    identity_["items"] = questions.size();
    identity_["by"] = options_.by_cross_entropy ? "cross entropy" : "exact match";
  }
  return Status::Ok();
}

bool SoupScorer::IsBetter(double score, double than) const {
  if (std::isnan(score)) return false;
  if (std::isnan(than)) return true;
  return higher_is_better_ ? score > than : score < than;
}

std::string SoupScorer::name() const {
  if (!options_.text_file.empty()) return "perplexity of " + FileName(options_.text_file);
  if (!options_.questions_file.empty()) {
    return (options_.by_cross_entropy ? "answers' cross entropy, " : "exact match, ") +
           FileName(options_.questions_file);
  }
  return options_.metric_file.empty() ? "the command's score" : options_.metric;
}

Result<double> SoupScorer::OfTrained(const std::string& directory, const std::string& what) const {
  return options_.metric_file.empty() ? OfMerged(directory, what) : ByMetricFile(directory);
}

Result<double> SoupScorer::OfMerged(const std::string& directory, const std::string& what) const {
  DF_CHECK(CanMeasureMerged());
  return HasOwn() ? ByEvaluation(directory, what) : ByCommand(directory, what);
}

Result<double> SoupScorer::ByCommand(const std::string& directory, const std::string& what) const {
  const std::string command = WithModel(options_.command, directory);
  CommandOptions how{.timeout_s = options_.command_timeout_s};
  how.go_on = [&] { return !options_.on_progress || options_.on_progress("measuring " + what, 0, 1); };
  DF_ASSIGN_OR_RETURN(const CommandOutput output, RunCommand(command, how));
  const std::optional<double> score = LastNumber(output.out);
  if (score) return *score;
  return FailedPrecondition("the command printed no number: " + command + "\n  it printed: " + output.out +
                            (output.error.empty() ? "" : "\n  to stderr: " + output.error));
}

Result<double> SoupScorer::ByMetricFile(const std::string& directory) const {
  const std::string path = directory + "/" + options_.metric_file;
  DF_ASSIGN_OR_RETURN(std::string text, ReadFileBounded(path, kMaxMetricBytes));
  const Result<Json> file = ParseJson(WithoutNonFinite(std::move(text)), {.max_bytes = 4 * kMaxMetricBytes});
  if (!file.ok()) return file.status().Annotate(path);
  const Result<double> score = MetricAt(*file, options_.metric);
  if (!score.ok()) return score.status().Annotate(path);
  return score;
}

// A full model is measured as a base without variants; an adapter on the base.
Result<double> SoupScorer::ByEvaluation(const std::string& directory, const std::string& what) const {
  DF_ASSIGN_OR_RETURN(const DirectoryKind kind, KindOfDirectory(directory));
  const bool is_adapter = kind == DirectoryKind::kAdapter;
  eval::EvalOptions how{.n_threads = options_.n_threads,
                        .n_items = options_.n_items,
                        .text = text_,
                        .windows = {.window_tokens = options_.window_tokens, .max_tokens = options_.text_tokens},
                        .with_base = !is_adapter,
                        .generate = !options_.by_cross_entropy,
                        .bootstrap = {},
                        .on_progress = options_.on_progress};
  eval::Subject subject{.name = what, .full_directory = {}, .codes = {}, .task_file = options_.questions_file};
  if (is_adapter) subject.codes.push_back({.code = "adapter", .directory = directory});
  // A trainer that was given no tokenizer writes none: the base's then, as for merged checkpoints.
  DF_ASSIGN_OR_RETURN(const bool has_text, HasFile(directory + "/tokenizer.json"));
  std::optional<ModelText> base_text;
  if (!is_adapter && !has_text && !options_.base.empty()) {
    DF_ASSIGN_OR_RETURN(const std::string base, ResolveModelDirectory(options_.base));
    DF_ASSIGN_OR_RETURN(base_text, LoadModelText(base));
  }
  DF_ASSIGN_OR_RETURN(const LoadedBase loaded, [&] {
    KernelContext context(options_.n_threads == 0 ? UsableCpus() : options_.n_threads);
    return LoadBaseVariant(context, what, is_adapter ? options_.base : directory,
                           {.text_under = base_text ? &*base_text : nullptr});
  }());
  DF_ASSIGN_OR_RETURN(const std::vector<eval::EvalResult> results, eval::EvaluateSubject(loaded, subject, how));
  if (results.size() != 1) return Internal("an evaluation of one model gave several");
  const eval::EvalResult& result = results.front();
  if (options_.questions_file.empty()) return std::exp(eval::MeanOf(result.windows.cross_entropy));
  return options_.by_cross_entropy ? eval::MeanOf(result.answers.cross_entropy)
                                   : 100 * eval::MeanOf(result.answers.correct);
}

}  // namespace df::tools
