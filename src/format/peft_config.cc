#include "format/peft_config.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>

#include "base/json.h"
#include "format/message.h"

namespace df {
namespace {

constexpr IntRange kRankRange{.min = 1, .max = 65536};
constexpr size_t kMaxPatterns = 4096;  // EVA and extracted adapters have one a module: seven a layer
constexpr size_t kMaxRegexes = 256;    // of them that are no plain names: each takes tens of kilobytes
constexpr size_t kMaxNames = 100'000;  // all-linear is stored expanded: seven names a layer
constexpr IntRange kLayerRange{.min = 0, .max = INT32_MAX};

constexpr size_t kMaxTokens = 1'000'000;

// Fields that are read below.
constexpr std::array<std::string_view, 17> kReadFields = {"peft_type",
                                                          "r",
                                                          "lora_alpha",
                                                          "use_rslora",
                                                          "rank_pattern",
                                                          "alpha_pattern",
                                                          "target_modules",
                                                          "exclude_modules",
                                                          "layers_to_transform",
                                                          "layers_pattern",
                                                          "bias",
                                                          "use_dora",
                                                          "lora_bias",
                                                          "modules_to_save",
                                                          "trainable_token_indices",
                                                          "init_lora_weights",
                                                          "ensure_weight_tying"};

// Fields that change nothing of what a loaded adapter computes: labels, training, ways of initialising, sizes of what
// is refused by another field.
constexpr std::array<std::string_view, 16> kIgnoredFields = {"base_model_name_or_path",
                                                             "revision",
                                                             "auto_mapping",
                                                             "task_type",
                                                             "inference_mode",
                                                             "peft_version",
                                                             "lora_dropout",
                                                             "runtime_config",
                                                             "megatron_config",
                                                             "megatron_core",
                                                             "loftq_config",
                                                             "eva_config",
                                                             "corda_config",
                                                             "lora_ga_config",
                                                             "qalora_group_size",
                                                             "merge_weights"};

// Null, false and empty mean that a feature is not used.
bool IsUnused(const Json& value) {
  if (value.is_null() || (value.is_boolean() && !value.get<bool>())) return true;
  if (value.is_string()) return value.get_ref<const std::string&>().empty();
  return value.is_structured() && value.empty();
}

Status Refuse(const Json& json, std::string_view key) {
  return Unsupported("adapter field " + Quoted(key) + ": " + DumpJson(json.at(std::string(key))).substr(0, 60) +
                     " is not supported");
}

// Initialisations other than these change the base's weights when the adapter is loaded.
Status CheckInitialisation(const Json& json) {
  const Json* init = JsonMemberOrNull(json, "init_lora_weights");
  if (init == nullptr || init->is_boolean()) return Status::Ok();
  if (init->is_string()) {
    const auto& name = init->get_ref<const std::string&>();
    if (name == "gaussian" || name == "eva" || name == "orthogonal") return Status::Ok();
  }
  return Refuse(json, "init_lora_weights");
}

// A field that is neither read nor known to be harmless may change the computation.
Status RefuseOtherComputation(const Json& json) {
  DF_ASSIGN_OR_RETURN(const std::string type, JsonString(json, "peft_type"));
  if (type != "LORA") return Unsupported("adapter field \"peft_type\": " + Quoted(type) + " is not supported: LORA is");
  for (const auto& [key, value] : json.items()) {
    const auto is_key = [&key](std::string_view known) { return key == known; };
    if (std::ranges::any_of(kReadFields, is_key) || std::ranges::any_of(kIgnoredFields, is_key)) continue;
    if (!IsUnused(value)) return Refuse(json, key);
  }
  return CheckInitialisation(json);
}

Status WrongShape(std::string_view key, std::string_view expected, const Json& got) {
  return InvalidArgument("adapter field \"" + std::string(key) + "\" must be " + std::string(expected) + ", got " +
                         DumpJson(got).substr(0, 60));
}

Result<ModuleMatcher> ReadMatcher(const Json& json, std::string_view key) {
  ModuleMatcher matcher;
  const Json* value = JsonMemberOrNull(json, key);
  if (value == nullptr) return matcher;
  if (value->is_string()) {
    const auto& text = value->get_ref<const std::string&>();
    matcher.all_linear = text == "all-linear";
    if (matcher.all_linear) return matcher;
    Result<Pattern> pattern = Pattern::Compile(text);
    if (!pattern.ok()) return pattern.status().Annotate(key);
    matcher.pattern = *std::move(pattern);
    return matcher;
  }
  if (!value->is_array() || value->size() > kMaxNames) return WrongShape(key, "a pattern or a list of names", *value);
  for (const Json& name : *value) {
    if (!name.is_string()) return WrongShape(key, "a pattern or a list of names", *value);
    matcher.names.insert(name.get<std::string>());
  }
  return matcher;
}

// Letters, digits, "_" and ".": as a regular expression it is itself, but for the dots.
bool IsPlainName(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.';
  });
}

Result<std::vector<PatternValue>> ReadPatternValues(const Json& json, std::string_view key) {
  std::vector<PatternValue> values;
  const Json* object = JsonMemberOrNull(json, key);
  if (object == nullptr) return values;
  if (!object->is_object() || object->size() > kMaxPatterns) {
    return WrongShape(key, "an object of at most " + std::to_string(kMaxPatterns) + " patterns", *object);
  }
  size_t n_regexes = 0;
  for (const auto& [pattern, number] : object->items()) {
    if (!number.is_number()) return WrongShape(key, "an object of numbers", *object);
    if (IsPlainName(pattern)) {
      values.push_back({Pattern::AtEnd(pattern), number.get<double>()});
      continue;
    }
    if (++n_regexes > kMaxRegexes) {
      return WrongShape(key, "an object of at most " + std::to_string(kMaxRegexes) + " regular expressions", *object);
    }
    // Alone first: a key like "a)|(b" must not close the group that it is put into.
    Result<Pattern> compiled = Pattern::Compile(pattern);
    if (compiled.ok()) compiled = Pattern::Compile(R"((?:.*\.)?(?:)" + pattern + ")");
    if (!compiled.ok()) return compiled.status().Annotate(key);
    values.push_back({*std::move(compiled), number.get<double>()});
  }
  return values;
}

Status ReadLayers(const Json& json, PeftConfig& config) {
  if (const Json* layers = JsonMemberOrNull(json, "layers_to_transform")) {
    const Json list = layers->is_array() ? *layers : Json::array({*layers});
    if (list.size() > kMaxNames) return WrongShape("layers_to_transform", "a list of layer numbers", *layers);
    for (const Json& layer : list) {
      Json one = Json::object();
      one["layers_to_transform"] = layer;
      DF_ASSIGN_OR_RETURN(const int64_t number, JsonInt(one, "layers_to_transform", kLayerRange));
      config.layers.push_back(number);
    }
  }
  std::vector<std::string> patterns;
  if (const Json* value = JsonMemberOrNull(json, "layers_pattern")) {
    const Json list = value->is_array() ? *value : Json::array({*value});
    if (list.size() > kMaxRegexes) return WrongShape("layers_pattern", "a pattern or a short list of patterns", *value);
    for (const Json& pattern : list) {
      if (!pattern.is_string()) return WrongShape("layers_pattern", "a pattern or a short list of patterns", *value);
      if (!pattern.get_ref<const std::string&>().empty() || list.size() > 1) patterns.push_back(pattern);
    }
  }
  // As PEFT has it: the number after the named list of layers, or after any.
  for (std::string& pattern : patterns) {
    // PEFT pastes the text into its own expression; only a plain name means the same to everybody.
    if (!pattern.empty() && !IsPlainName(pattern)) return Refuse(json, "layers_pattern");
    pattern = R"((?:^|.*?\.))" + pattern + R"(\.(\d+)\.)";
  }
  if (patterns.empty()) patterns = {R"(.*?\.[^.]*\.(\d+)\.)"};
  for (const std::string& pattern : patterns) {
    Result<Pattern> compiled = Pattern::Compile(pattern);
    if (!compiled.ok()) return compiled.status().Annotate("layers_pattern");
    config.layer_patterns.push_back(*std::move(compiled));
  }
  return Status::Ok();
}

Result<AdapterBias> ReadBias(const Json& json) {
  DF_ASSIGN_OR_RETURN(const std::string bias, JsonStringOr(json, "bias", "none"));
  if (bias == "none") return AdapterBias::kNone;
  if (bias == "lora_only") return AdapterBias::kLoraOnly;
  if (bias == "all") return AdapterBias::kAll;
  return Refuse(json, "bias");
}

Result<std::vector<std::string>> ReadModulesToSave(const Json& json) {
  constexpr std::string_view kKey = "modules_to_save";
  std::vector<std::string> names;
  const Json* value = JsonMemberOrNull(json, kKey);
  if (value == nullptr) return names;
  if (!value->is_array() || value->size() > kMaxNames) return WrongShape(kKey, "a list of names", *value);
  for (const Json& name : *value) {
    if (!name.is_string() || name.get_ref<const std::string&>().empty()) {
      return WrongShape(kKey, "a list of names", *value);
    }
    names.push_back(name.get<std::string>());
  }
  return names;
}

Result<TrainableTokens> ReadTokens(std::string module, const Json& list) {
  constexpr std::string_view kKey = "trainable_token_indices";
  if (!list.is_array() || list.size() > kMaxTokens) return WrongShape(kKey, "a list of token ids", list);
  TrainableTokens tokens{.module = std::move(module), .index = {}};
  for (const Json& id : list) {
    const bool fits = id.is_number_integer() && (!id.is_number_unsigned() || id.get<uint64_t>() <= INT32_MAX) &&
                      id.get<int64_t>() >= 0 && id.get<int64_t>() <= INT32_MAX;
    if (!fits) return WrongShape(kKey, "a list of token ids", list);
    tokens.index.push_back(id.get<int32_t>());
  }
  std::vector<int32_t> sorted = tokens.index;
  std::ranges::sort(sorted);
  const auto twice = std::ranges::adjacent_find(sorted);
  if (twice == sorted.end()) return tokens;
  return InvalidArgument("adapter field \"trainable_token_indices\" has token " + std::to_string(*twice) +
                         " twice: which of its rows counts is not defined");
}

// A list is for the embedding; an object says for which modules.
Result<std::vector<TrainableTokens>> ReadTrainableTokens(const Json& json) {
  std::vector<TrainableTokens> all;
  const Json* value = JsonMemberOrNull(json, "trainable_token_indices");
  if (value == nullptr || value->empty()) return all;
  if (!value->is_object()) {
    DF_ASSIGN_OR_RETURN(TrainableTokens tokens, ReadTokens("embed_tokens", *value));
    all.push_back(std::move(tokens));
    return all;
  }
  if (value->size() > kMaxRegexes) return WrongShape("trainable_token_indices", "an object of few modules", *value);
  for (const auto& [module, list] : value->items()) {
    DF_ASSIGN_OR_RETURN(TrainableTokens tokens, ReadTokens(module, list));
    all.push_back(std::move(tokens));
  }
  return all;
}

Status CheckRanks(const PeftConfig& config) {
  for (const PatternValue& entry : config.rank_pattern) {
    const auto max = static_cast<double>(kRankRange.max);
    if (entry.value >= 1 && entry.value <= max && entry.value == std::floor(entry.value)) continue;
    return InvalidArgument("adapter field \"rank_pattern\" must give ranks from 1 to 65536, got " +
                           DumpJson(entry.value));
  }
  return Status::Ok();
}

// The value of the first pattern that matches.
double FirstMatch(const std::vector<PatternValue>& entries, std::string_view path, double otherwise) {
  for (const PatternValue& entry : entries) {
    if (entry.pattern.MatchesWhole(path)) return entry.value;
  }
  return otherwise;
}

}  // namespace

bool ModuleMatcher::MatchesDirectly(const std::string& path) const { return names.contains(path); }

bool ModuleMatcher::Matches(const std::string& path) const {
  if (all_linear) return path != "lm_head";
  if (pattern) return pattern->MatchesWhole(path);
  if (names.contains(path)) return true;
  for (size_t dot = path.find('.'); dot != std::string::npos; dot = path.find('.', dot + 1)) {
    if (names.contains(path.substr(dot + 1))) return true;
  }
  return false;
}

bool PeftConfig::Targets(const std::string& path) const {
  if (excluded.Matches(path) || !targets.Matches(path)) return false;
  // PEFT narrows by layer only what a list matched by suffix.
  if (layers.empty() || targets.pattern || targets.MatchesDirectly(path)) return true;
  for (const Pattern& pattern : layer_patterns) {
    const std::optional<int64_t> layer = pattern.NumberAtStart(path);
    if (layer) return std::find(layers.begin(), layers.end(), *layer) != layers.end();
  }
  return false;
}

bool PeftConfig::Saves(std::string_view path) const {
  const auto ends_so = [&path](const std::string& name) { return path.ends_with(name); };
  while (!modules_to_save.empty()) {
    if (std::ranges::any_of(modules_to_save, ends_so)) return true;
    const size_t dot = path.rfind('.');
    if (dot == std::string_view::npos) break;
    path = path.substr(0, dot);
  }
  return false;
}

const TrainableTokens* PeftConfig::TokensOrNull(std::string_view path) const {
  for (const TrainableTokens& tokens : trainable_tokens) {
    if (path == tokens.module || path.ends_with("." + tokens.module)) return &tokens;
  }
  return nullptr;
}

size_t PeftConfig::RankOf(std::string_view path) const {
  return static_cast<size_t>(FirstMatch(rank_pattern, path, static_cast<double>(rank)));
}

double PeftConfig::ScaleOf(std::string_view path) const {
  const auto r = static_cast<double>(RankOf(path));
  return FirstMatch(alpha_pattern, path, alpha) / (rslora ? std::sqrt(r) : r);
}

Result<PeftConfig> ParsePeftConfig(const Json& json) {
  if (!json.is_object()) return InvalidArgument("the adapter config must be a JSON object");
  DF_RETURN_IF_ERROR(RefuseOtherComputation(json));
  PeftConfig config;
  DF_ASSIGN_OR_RETURN(const int64_t rank, JsonInt(json, "r", kRankRange));
  config.rank = static_cast<size_t>(rank);
  DF_ASSIGN_OR_RETURN(config.alpha, JsonNumber(json, "lora_alpha"));
  DF_ASSIGN_OR_RETURN(config.rslora, JsonBoolOr(json, "use_rslora", false));
  DF_ASSIGN_OR_RETURN(config.dora, JsonBoolOr(json, "use_dora", false));
  DF_ASSIGN_OR_RETURN(config.lora_bias, JsonBoolOr(json, "lora_bias", false));
  if (config.dora && config.lora_bias) return Refuse(json, "lora_bias");  // undefined in PEFT too
  DF_ASSIGN_OR_RETURN(config.ties_weights, JsonBoolOr(json, "ensure_weight_tying", false));
  DF_ASSIGN_OR_RETURN(config.bias, ReadBias(json));
  DF_ASSIGN_OR_RETURN(config.modules_to_save, ReadModulesToSave(json));
  DF_ASSIGN_OR_RETURN(config.trainable_tokens, ReadTrainableTokens(json));
  DF_ASSIGN_OR_RETURN(config.rank_pattern, ReadPatternValues(json, "rank_pattern"));
  DF_ASSIGN_OR_RETURN(config.alpha_pattern, ReadPatternValues(json, "alpha_pattern"));
  DF_RETURN_IF_ERROR(CheckRanks(config));
  if (JsonMemberOrNull(json, "target_modules") == nullptr) {
    return InvalidArgument("adapter field \"target_modules\" is missing");
  }
  DF_ASSIGN_OR_RETURN(config.targets, ReadMatcher(json, "target_modules"));
  DF_ASSIGN_OR_RETURN(config.excluded, ReadMatcher(json, "exclude_modules"));
  if (config.excluded.all_linear) return Refuse(json, "exclude_modules");
  DF_RETURN_IF_ERROR(ReadLayers(json, config));
  return config;
}

}  // namespace df
