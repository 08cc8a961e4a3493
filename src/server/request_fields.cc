#include "server/request_fields.h"

#include <algorithm>
#include <cmath>

#include "engine/session.h"

namespace df::server {
namespace {

// Features of OpenAI's, vLLM's and llama.cpp's servers that are not built here yet.
constexpr MissingFeature kMissing[] = {
    {"n", Neutral::kCountOne},
    {"best_of", Neutral::kCountOne},
    {"logit_bias", Neutral::kEmpty},
    {"presence_penalty", Neutral::kZero, -2, 2},
    {"frequency_penalty", Neutral::kZero, -2, 2},
    {"repetition_penalty", Neutral::kOne, 0, 1e6},
    {"length_penalty", Neutral::kOne},
    {"min_p", Neutral::kZero, 0, 1},
    {"typical_p", Neutral::kOne, 0, 1},
    {"use_beam_search", Neutral::kFalse},
    {"bad_words", Neutral::kEmpty},
    {"allowed_token_ids", Neutral::kNullOnly},
    {"prompt_logprobs", Neutral::kNullOnly},
    {"return_token_ids", Neutral::kFalse},
    {"return_tokens_as_token_ids", Neutral::kFalse},
    {"spaces_between_special_tokens", Neutral::kTrue},
    {"truncate_prompt_tokens", Neutral::kNullOnly},
    {"priority", Neutral::kZero},
    {"response_format", Neutral::kTypeText},
    {"structured_outputs", Neutral::kNullOnly},
    {"guided_json", Neutral::kNullOnly},
    {"guided_regex", Neutral::kNullOnly},
    {"guided_choice", Neutral::kNullOnly},
    {"guided_grammar", Neutral::kNullOnly},
    {"grammar", Neutral::kEmpty},
    {"json_schema", Neutral::kNullOnly},
    {"logits_processors", Neutral::kEmpty},
    {"kv_transfer_params", Neutral::kNullOnly},
    {"vllm_xargs", Neutral::kEmpty},
    {"repetition_detection", Neutral::kNullOnly},
};

bool IsNumber(const Json& value, double number) { return value.is_number() && value.get<double>() == number; }

FieldError CheckNumberFeature(const MissingFeature& feature, const Json& value, double neutral) {
  if (!value.is_number()) return InvalidField(feature.field, "a number");
  const double number = value.get<double>();
  if (number < feature.min || number > feature.max) {
    char expected[80];
    std::snprintf(expected, sizeof(expected), "a number from %g to %g", feature.min, feature.max);
    return InvalidField(feature.field, expected);
  }
  if (number != neutral) return UnsupportedField(feature.field, "leave it out");
  return std::nullopt;
}

bool AsksForNothing(Neutral neutral, const Json& value) {
  switch (neutral) {
    case Neutral::kFalse: return value == Json(false);
    case Neutral::kTrue: return value == Json(true);
    case Neutral::kEmpty: return (value.is_structured() && value.empty()) || value == Json("");
    case Neutral::kTypeText: return value.is_object() && value.contains("type") && value["type"] == Json("text");
    case Neutral::kNoneOrAuto: return value == Json("none") || value == Json("auto");
    case Neutral::kTextOnly: return value.is_array() && value.size() == 1 && value[0] == Json("text");
    default: return false;
  }
}

FieldError CheckMissingFeature(const MissingFeature& feature, const Json& value) {
  switch (feature.neutral) {
    case Neutral::kZero: return CheckNumberFeature(feature, value, 0);
    case Neutral::kOne: return CheckNumberFeature(feature, value, 1);
    case Neutral::kCountOne:
      if (!value.is_number_integer() || value.get<double>() < 1) return InvalidField(feature.field, "an integer >= 1");
      if (!IsNumber(value, 1)) return UnsupportedField(feature.field, "only 1 answer a request");
      return std::nullopt;
    default:
      if (!AsksForNothing(feature.neutral, value)) return UnsupportedField(feature.field);
      return std::nullopt;
  }
}

FieldError ReadStop(const Json& root, std::vector<std::string>& stop) {
  const Json* value = JsonMemberOrNull(root, "stop");
  if (value == nullptr) return std::nullopt;
  if (!value->is_string() && !value->is_array()) return InvalidField("stop", "a string or an array of strings");
  const Json list = value->is_string() ? Json::array({*value}) : *value;
  if (list.size() > kMaxStopStrings) {
    return InvalidField("stop", "at most " + std::to_string(kMaxStopStrings) + " strings");
  }
  size_t total_bytes = 0;
  for (const Json& entry : list) {
    if (!entry.is_string()) return InvalidField("stop", "a string or an array of strings");
    stop.push_back(entry.get<std::string>());
    if (stop.back().empty()) return InvalidField("stop", "without empty strings");
    total_bytes += stop.back().size();
  }
  if (total_bytes > kMaxStopBytes) {
    return InvalidField("stop", "at most " + std::to_string(kMaxStopBytes) + " bytes together");
  }
  return std::nullopt;
}

FieldError ReadStreamOptions(const Json& root, GenerationFields& fields) {
  DF_RETURN_IF_FIELD_ERROR(ReadBool(root, "stream", fields.stream));
  const Json* options = JsonMemberOrNull(root, "stream_options");
  if (options == nullptr) return std::nullopt;
  if (!options->is_object()) return InvalidField("stream_options", "an object");
  if (!fields.stream) return InvalidField("stream_options", "left out unless stream is true");
  bool continuous = false;
  DF_RETURN_IF_FIELD_ERROR(ReadBool(*options, "include_usage", fields.include_usage));
  DF_RETURN_IF_FIELD_ERROR(ReadBool(*options, "continuous_usage_stats", continuous));
  if (continuous) return UnsupportedField("stream_options.continuous_usage_stats");
  return std::nullopt;
}

FieldError ReadLengths(const Json& root, LengthRule rule, GenerationFields& fields) {
  const IntRange count = {rule.min_max_tokens, INT32_MAX};
  std::optional<int64_t> min_tokens;
  DF_RETURN_IF_FIELD_ERROR(ReadInt(root, "max_tokens", count, fields.max_tokens));
  DF_RETURN_IF_FIELD_ERROR(ReadInt(root, "max_completion_tokens", count, fields.max_tokens));
  DF_RETURN_IF_FIELD_ERROR(ReadInt(root, "min_tokens", {0, INT32_MAX}, min_tokens));
  fields.min_tokens = min_tokens.value_or(0);
  if (fields.max_tokens && fields.min_tokens > *fields.max_tokens) return InvalidField("min_tokens", "<= max_tokens");
  return std::nullopt;
}

}  // namespace

FieldError ReadBool(const Json& root, std::string_view key, bool& value) {
  const Json* member = JsonMemberOrNull(root, key);
  if (member == nullptr) return std::nullopt;
  if (!member->is_boolean()) return InvalidField(key, "true or false");
  value = member->get<bool>();
  return std::nullopt;
}

FieldError ReadInt(const Json& root, std::string_view key, IntRange range, std::optional<int64_t>& value) {
  if (JsonMemberOrNull(root, key) == nullptr) return std::nullopt;
  const Result<int64_t> number = JsonInt(root, key, range);
  if (!number.ok()) {
    return InvalidField(key, "an integer from " + std::to_string(range.min) + " to " + std::to_string(range.max));
  }
  value = *number;
  return std::nullopt;
}

FieldError ReadNumber(const Json& root, std::string_view key, NumberRange range, std::optional<double>& value) {
  const Json* member = JsonMemberOrNull(root, key);
  if (member == nullptr) return std::nullopt;
  const double number = member->is_number() ? member->get<double>() : NAN;
  const bool inside = number >= range.min && number <= range.max && !(range.min_excluded && number == range.min);
  if (!inside) {  // NaN compares false
    char expected[80];
    std::snprintf(expected, sizeof(expected), "a number %s %g and <= %g", range.min_excluded ? ">" : ">=", range.min,
                  range.max);
    return InvalidField(key, expected);
  }
  value = number;
  return std::nullopt;
}

FieldError ReadString(const Json& root, std::string_view key, size_t max_bytes, std::string& value) {
  const Json* member = JsonMemberOrNull(root, key);
  if (member == nullptr) return std::nullopt;
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; };
  const bool is_text = member->is_string() && member->get_ref<const std::string&>().size() <= max_bytes;
  if (!is_text || std::any_of(member->get_ref<const std::string&>().begin(),
                              member->get_ref<const std::string&>().end(), is_control)) {
    return InvalidField(key, "a string of at most " + std::to_string(max_bytes) + " bytes without control characters");
  }
  value = member->get<std::string>();
  return std::nullopt;
}

FieldError ReadTokenIds(const Json& array, std::string_view name, std::vector<int32_t>& ids) {
  if (!array.is_array()) return InvalidField(name, "an array of token ids");
  ids.reserve(array.size());
  for (const Json& entry : array) {
    const bool integer = entry.is_number_integer();
    const double number = integer ? entry.get<double>() : -1;
    if (number < 0 || number > INT32_MAX) return InvalidField(name, "an array of integers from 0 to 2147483647");
    ids.push_back(entry.get<int32_t>());
  }
  return std::nullopt;
}

FieldError CheckMissingFeatures(const Json& root, std::span<const MissingFeature> features) {
  for (const MissingFeature& feature : features) {
    const Json* value = JsonMemberOrNull(root, feature.field);
    if (value != nullptr) DF_RETURN_IF_FIELD_ERROR(CheckMissingFeature(feature, *value));
  }
  return std::nullopt;
}

FieldError ReadGenerationFields(const Json& root, LengthRule rule, GenerationFields& fields) {
  const Json* model = JsonMemberOrNull(root, "model");
  if (model == nullptr || !model->is_string()) return InvalidField("model", "the name of a served model");
  fields.model = model->get<std::string>();
  DF_RETURN_IF_FIELD_ERROR(ReadNumber(root, "temperature", {.min = 0, .max = 2}, fields.temperature));
  DF_RETURN_IF_FIELD_ERROR(ReadNumber(root, "top_p", {.min = 0, .max = 1, .min_excluded = true}, fields.top_p));
  DF_RETURN_IF_FIELD_ERROR(ReadInt(root, "top_k", {-1, INT32_MAX}, fields.top_k));
  DF_RETURN_IF_FIELD_ERROR(ReadInt(root, "seed", {}, fields.seed));
  DF_RETURN_IF_FIELD_ERROR(ReadLengths(root, rule, fields));
  DF_RETURN_IF_FIELD_ERROR(ReadStop(root, fields.stop));
  if (const Json* ids = JsonMemberOrNull(root, "stop_token_ids")) {
    DF_RETURN_IF_FIELD_ERROR(ReadTokenIds(*ids, "stop_token_ids", fields.stop_token_ids));
    if (fields.stop_token_ids.size() > 1024) return InvalidField("stop_token_ids", "at most 1024 ids");
  }
  DF_RETURN_IF_FIELD_ERROR(ReadBool(root, "include_stop_str_in_output", fields.include_stop_str_in_output));
  DF_RETURN_IF_FIELD_ERROR(ReadBool(root, "ignore_eos", fields.ignore_eos));
  DF_RETURN_IF_FIELD_ERROR(ReadBool(root, "skip_special_tokens", fields.skip_special_tokens));
  DF_RETURN_IF_FIELD_ERROR(ReadStreamOptions(root, fields));
  DF_RETURN_IF_FIELD_ERROR(ReadString(root, "cache_salt", kMaxCacheSaltBytes, fields.cache_salt));
  return CheckMissingFeatures(root, kMissing);
}

SamplingParams ToSamplingParams(const GenerationFields& fields, SamplingParams defaults) {
  if (fields.temperature) defaults.temperature = *fields.temperature;
  if (fields.top_p) defaults.top_p = *fields.top_p;
  if (fields.top_k) defaults.top_k = static_cast<int32_t>(*fields.top_k);
  if (fields.max_tokens) defaults.max_tokens = static_cast<size_t>(*fields.max_tokens);
  if (fields.seed) defaults.seed = static_cast<uint64_t>(*fields.seed);
  if (fields.logprobs) defaults.logprobs = static_cast<size_t>(*fields.logprobs);
  defaults.min_tokens = static_cast<size_t>(fields.min_tokens);
  defaults.stop_ids.insert(defaults.stop_ids.end(), fields.stop_token_ids.begin(), fields.stop_token_ids.end());
  defaults.ignore_eos = fields.ignore_eos;
  return defaults;
}

}  // namespace df::server
