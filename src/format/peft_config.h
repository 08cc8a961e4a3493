// adapter_config.json of a LoRA adapter: which modules it targets, with which rank and alpha, and what else it changes.
// docs/formats/adapter.md has the table of every field.
#ifndef DELTAFOLD_FORMAT_PEFT_CONFIG_H_
#define DELTAFOLD_FORMAT_PEFT_CONFIG_H_

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "base/json_fwd.h"
#include "base/status.h"

namespace re2 {
class RE2;
}

namespace df {

// A regular expression in linear time (RE2), compiled within bounds: at most 1000 bytes, 1 MiB. Python's syntax but for
// look-around and back-references, which are refused. Immutable, thread-safe.
class Pattern {
 public:
  static Result<Pattern> Compile(std::string_view text);
  // What ^(.*\.)?(text)$ matches, for a `text` of letters, digits, "_" and ".": no expression is compiled.
  static Pattern AtEnd(std::string text);
  Pattern(Pattern&&) noexcept;
  Pattern& operator=(Pattern&&) noexcept;
  ~Pattern();

  bool MatchesWhole(std::string_view text) const;
  // Number in the first group of a match at the start of `text`.
  std::optional<int64_t> NumberAtStart(std::string_view text) const;

 private:
  explicit Pattern(std::unique_ptr<re2::RE2> regex);
  std::unique_ptr<re2::RE2> regex_;  // null: `end_` in its place
  std::string end_;
};

// `target_modules` or `exclude_modules`: a regular expression over the whole module path, or names that match the path
// or a dotted suffix of it.
struct ModuleMatcher {
  std::optional<Pattern> pattern;
  std::unordered_set<std::string> names;
  bool all_linear = false;  // every linear layer but the head

  bool MatchesDirectly(const std::string& path) const;  // the whole path is one of the names
  bool Matches(const std::string& path) const;
};

// One entry of rank_pattern or alpha_pattern: applies to the paths that match ^(.*\.)?(key)$; the first in file order
// wins.
struct PatternValue {
  Pattern pattern;
  double value = 0;
};

// Which biases the adapter replaces: none, those of the targeted modules, or any.
enum class AdapterBias { kNone, kLoraOnly, kAll };

// Rows of the modules called `module` (or ending in ".module") that the adapter replaces.
struct TrainableTokens {
  std::string module;
  std::vector<int32_t> index;  // as written; no index twice
};

// Immutable after parsing.
struct PeftConfig {
  size_t rank = 0;
  double alpha = 0;
  bool rslora = false;  // scale alpha / sqrt(r) in place of alpha / r
  bool dora = false;
  bool lora_bias = false;     // lora_B has a bias
  bool ties_weights = false;  // what targets the embedding is stored again for a head tied to it
  AdapterBias bias = AdapterBias::kNone;
  std::vector<std::string> modules_to_save;  // endings of module paths
  std::vector<TrainableTokens> trainable_tokens;
  std::vector<PatternValue> rank_pattern, alpha_pattern;
  ModuleMatcher targets, excluded;
  std::vector<int64_t> layers;  // layers_to_transform; empty = all. Narrows a target that matched by suffix
  std::vector<Pattern> layer_patterns;

  bool Targets(const std::string& path) const;
  // By plain ending, as PEFT does: "norm" saves every module whose path ends so, "mlp" all that is in such modules.
  bool Saves(std::string_view path) const;
  const TrainableTokens* TokensOrNull(std::string_view path) const;
  size_t RankOf(std::string_view path) const;
  double ScaleOf(std::string_view path) const;  // alpha / r, or alpha / sqrt(r)
};

// The only errors are kInvalidArgument (missing, wrong type, out of range) and kUnsupported (named field).
Result<PeftConfig> ParsePeftConfig(const Json& json);

}  // namespace df

#endif  // DELTAFOLD_FORMAT_PEFT_CONFIG_H_
