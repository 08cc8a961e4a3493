#include "base/json.h"
#include "format/architecture.h"
#include "format/model_config.h"

namespace df {
namespace {

Status OutOfRange(std::string_view key, std::string_view expected, double got) {
  return InvalidArgument("\"" + std::string(key) + "\" must be " + std::string(expected) + ", got " + DumpJson(got));
}

Result<GenerationDefaults> Parse(const Json& json) {
  if (!json.is_object()) return InvalidArgument("the generation config must be a JSON object");
  GenerationDefaults defaults;
  DF_ASSIGN_OR_RETURN(defaults.eos_ids, internal::ReadIds(json, "eos_token_id"));
  if (JsonMemberOrNull(json, "temperature") != nullptr) {
    DF_ASSIGN_OR_RETURN(const double value, JsonNumber(json, "temperature"));
    if (value < 0) return OutOfRange("temperature", "0 or more", value);
    defaults.temperature = value;
  }
  if (JsonMemberOrNull(json, "top_p") != nullptr) {
    DF_ASSIGN_OR_RETURN(const double value, JsonNumber(json, "top_p"));
    if (value <= 0 || value > 1) return OutOfRange("top_p", "above 0 and at most 1", value);
    defaults.top_p = value;
  }
  if (JsonMemberOrNull(json, "top_k") != nullptr) {
    DF_ASSIGN_OR_RETURN(defaults.top_k, JsonInt(json, "top_k", {.min = -1, .max = INT32_MAX}));
  }
  return defaults;
}

}  // namespace

Result<GenerationDefaults> LoadGenerationDefaults(const std::string& directory) {
  const std::string path = directory + "/generation_config.json";
  const Result<Json> json = ReadJsonFile(path);
  if (!json.ok() && json.status().code() == StatusCode::kNotFound) return GenerationDefaults();
  if (!json.ok()) return json.status();
  Result<GenerationDefaults> defaults = Parse(*json);
  if (!defaults.ok()) return defaults.status().Annotate(path);
  return defaults;
}

}  // namespace df
