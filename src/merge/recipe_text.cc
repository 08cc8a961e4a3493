// A recipe back to YAML, for model cards. Text is written as JSON strings, which are YAML's as well.
#include <cmath>

#include "base/json.h"
#include "merge/recipe.h"

namespace df::merge {
namespace {

std::string Quoted(const std::string& text) { return DumpJson(Json(text)); }

bool IsFlag(const Method* method, const std::string& name) {
  if (method == nullptr) return false;
  const Parameter* const parameter = FindParameterOrNull(*method, name);
  return parameter != nullptr && parameter->kind == ParameterKind::kFlag;
}

std::string ValueText(double value, bool is_flag) {
  if (is_flag) return value != 0 ? "true" : "false";
  // A whole number is written as one: "4", not "4.0".
  if (std::abs(value) < 1e15 && value == std::floor(value)) return std::to_string(static_cast<int64_t>(value));
  return DumpJson(Json(value));
}

std::string ValuesText(const std::vector<double>& values, bool is_flag) {
  if (values.size() == 1) return ValueText(values.front(), is_flag);
  std::string text = "[";
  for (size_t i = 0; i < values.size(); ++i) text += (i > 0 ? ", " : "") + ValueText(values[i], is_flag);
  return text + "]";
}

std::string ParametersText(const GivenParameters& parameters, const Method* method, const std::string& indent) {
  if (parameters.empty()) return "";
  std::string text = indent + "parameters:\n";
  for (const auto& [name, parameter] : parameters) {
    const bool is_flag = IsFlag(method, name);
    const bool is_plain = parameter.cases.size() == 1 && parameter.cases.front().filter.empty();
    text += indent + "  " + name + ":";
    if (is_plain) {
      text += " " + ValuesText(parameter.cases.front().values, is_flag) + "\n";
      continue;
    }
    text += "\n";
    for (const ParameterCase& entry : parameter.cases) {
      text += indent + "    - ";
      if (!entry.filter.empty()) text += "filter: " + Quoted(entry.filter) + "\n" + indent + "      ";
      text += "value: " + ValuesText(entry.values, is_flag) + "\n";
    }
  }
  return text;
}

std::string ModelText(const RecipeModel& model, const Method* method) {
  return "  - model: " + Quoted(model.model) + "\n" + ParametersText(model.parameters, method, "    ");
}

const char* DTypeText(DType dtype) {
  return dtype == DType::kBf16 ? "bfloat16" : dtype == DType::kF16 ? "float16" : "float32";
}

std::string TokenizerText(const TokenizerChoice& tokenizer) {
  using Source = TokenizerChoice::Source;
  if (tokenizer.source == Source::kUnsaid) return "";
  const std::string source = tokenizer.source == Source::kBase    ? "base"
                             : tokenizer.source == Source::kUnion ? "union"
                                                                  : Quoted(tokenizer.model);
  std::string text = "tokenizer:\n  source: " + source + "\n";
  if (tokenizer.pad_to_multiple_of != 1) {
    text += "  pad_to_multiple_of: " + std::to_string(tokenizer.pad_to_multiple_of) + "\n";
  }
  return text;
}

}  // namespace

std::string RecipeText(const Recipe& recipe) {
  const Method* const method = FindMethodOrNull(recipe.method);
  std::string text = "merge_method: " + recipe.method + "\n";
  if (recipe.base_model) text += "base_model: " + Quoted(*recipe.base_model) + "\n";
  text += "models:\n";
  for (const RecipeModel& model : recipe.models) text += ModelText(model, method);
  text += ParametersText(recipe.parameters, method, "");
  if (recipe.out_dtype) text += "out_dtype: " + std::string(DTypeText(*recipe.out_dtype)) + "\n";
  return text + TokenizerText(recipe.tokenizer);
}

}  // namespace df::merge
