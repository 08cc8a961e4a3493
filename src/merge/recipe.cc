#include "merge/recipe.h"

#include <algorithm>
#include <cmath>

#include "merge/yaml_text.h"

namespace df::merge {
namespace {

std::string Quote(std::string_view text) { return "\"" + std::string(text.substr(0, 120)) + "\""; }

Status Expected(const YamlNode& node, const std::string& what, const std::string& expected) {
  return InvalidArgument(AtLine(node.line) + what + ": expected " + expected + ", got " + Describe(node));
}

Result<std::string> ReadText(const YamlNode& node, const std::string& what) {
  if (node.kind != YamlNode::Kind::kScalar || node.scalar.empty()) return Expected(node, what, "text");
  if (node.scalar.size() > 4096) return Expected(node, what, "at most 4096 characters");
  return node.scalar;
}

Result<double> ReadValue(const YamlNode& node, const std::string& what) {
  double number = 0;
  if (ReadNumber(node, number)) return number;
  bool flag = false;
  if (ReadFlag(node, flag)) return flag ? 1.0 : 0.0;
  return Expected(node, what, "a number or true or false");
}

// One number, or a list of them for the layers.
Result<std::vector<double>> ReadValues(const YamlNode& node, const std::string& what) {
  std::vector<double> values;
  if (node.kind != YamlNode::Kind::kSequence) {
    DF_ASSIGN_OR_RETURN(values.emplace_back(), ReadValue(node, what));
    return values;
  }
  if (node.items.empty()) return Expected(node, what, "at least one number");
  for (const YamlNode& item : node.items) {
    DF_ASSIGN_OR_RETURN(values.emplace_back(), ReadValue(item, what));
  }
  return values;
}

Result<ParameterCase> ReadCase(const YamlNode& node, const std::string& what) {
  ParameterCase result;
  const YamlNode* value = nullptr;
  for (const auto& [key, member] : node.members) {
    if (key == "value") {
      value = &member;
    } else if (key == "filter") {
      if (member.kind == YamlNode::Kind::kNull) continue;
      double number = 0;
      if (ReadNumber(member, number)) return Expected(member, what + ".filter", "text, a number in quotes");
      DF_ASSIGN_OR_RETURN(result.filter, ReadText(member, what + ".filter"));
    } else {
      return Unsupported(AtLine(member.line) + what + ": unknown key " + Quote(key) + ", expected filter, value");
    }
  }
  if (value == nullptr) return Expected(node, what, "a key \"value\"");
  DF_ASSIGN_OR_RETURN(result.values, ReadValues(*value, what));
  return result;
}

Result<GivenParameter> ReadParameter(const YamlNode& node, const std::string& what) {
  GivenParameter parameter{.line = node.line};
  const bool has_cases =
      node.kind == YamlNode::Kind::kSequence && !node.items.empty() && node.items.front().kind == YamlNode::Kind::kMap;
  if (node.kind == YamlNode::Kind::kMap) {
    DF_ASSIGN_OR_RETURN(parameter.cases.emplace_back(), ReadCase(node, what));
  } else if (has_cases) {
    for (const YamlNode& item : node.items) {
      if (item.kind != YamlNode::Kind::kMap) return Expected(item, what, "keys filter and value, as before it");
      if (!parameter.cases.empty() && (parameter.cases.back().filter.empty() || parameter.cases.back().filter == "*")) {
        return InvalidArgument(AtLine(item.line) + what + ": a value behind one for all tensors is never taken");
      }
      DF_ASSIGN_OR_RETURN(parameter.cases.emplace_back(), ReadCase(item, what));
    }
  } else {
    ParameterCase& only = parameter.cases.emplace_back();
    DF_ASSIGN_OR_RETURN(only.values, ReadValues(node, what));
  }
  return parameter;
}

Result<GivenParameters> ReadParameters(const YamlNode& node, const std::string& owner) {
  GivenParameters parameters;
  if (node.kind == YamlNode::Kind::kNull) return parameters;
  if (node.kind != YamlNode::Kind::kMap) return Expected(node, owner + "parameters", "keys with values");
  for (const auto& [key, member] : node.members) {
    DF_ASSIGN_OR_RETURN(parameters[key], ReadParameter(member, owner + "parameter " + Quote(key)));
  }
  return parameters;
}

Result<RecipeModel> ReadModel(const YamlNode& node) {
  if (node.kind != YamlNode::Kind::kMap) return Expected(node, "models", "keys model and parameters in each entry");
  RecipeModel model;
  const YamlNode* const name = node.MemberOrNull("model");
  if (name == nullptr) return Expected(node, "models", "a key \"model\" in each entry");
  DF_ASSIGN_OR_RETURN(model.model, ReadText(*name, "model"));
  for (const auto& [key, member] : node.members) {
    if (key == "model") continue;
    if (key != "parameters") {
      return Unsupported(AtLine(member.line) + "model " + Quote(model.model) + ": unknown key " + Quote(key) +
                         ", expected model, parameters");
    }
    DF_ASSIGN_OR_RETURN(model.parameters, ReadParameters(member, "model " + Quote(model.model) + ": "));
  }
  return model;
}

Status ReadModels(const YamlNode& node, Recipe& recipe) {
  if (node.kind != YamlNode::Kind::kSequence || node.items.empty()) {
    return Expected(node, "models", "a list of at least one model");
  }
  for (const YamlNode& item : node.items) {
    DF_ASSIGN_OR_RETURN(recipe.models.emplace_back(), ReadModel(item));
  }
  return Status::Ok();
}

TokenizerChoice ChoiceOf(const std::string& source) {
  if (source == "base") return {.source = TokenizerChoice::Source::kBase};
  if (source == "union") return {.source = TokenizerChoice::Source::kUnion};
  return {.source = TokenizerChoice::Source::kModel, .model = source};
}

Result<TokenizerChoice> ReadTokenizer(const YamlNode& node) {
  if (node.kind != YamlNode::Kind::kMap) return Expected(node, "tokenizer", "keys source, pad_to_multiple_of");
  TokenizerChoice choice{.source = TokenizerChoice::Source::kUnion};  // as mergekit has it
  uint64_t multiple = 1;
  for (const auto& [key, member] : node.members) {
    if (key == "source") {
      DF_ASSIGN_OR_RETURN(const std::string source, ReadText(member, "tokenizer.source"));
      choice = ChoiceOf(source);
    } else if (key == "pad_to_multiple_of") {
      double value = 0;
      if (member.kind == YamlNode::Kind::kNull) continue;
      if (!ReadNumber(member, value) || value != std::floor(value) || value < 1 || value > 65536) {
        return Expected(member, "tokenizer.pad_to_multiple_of", "a whole number from 1 to 65536");
      }
      multiple = static_cast<uint64_t>(value);
    } else {
      return Unsupported(AtLine(member.line) + "tokenizer: the key " + Quote(key) +
                         (key == "tokens" ? " is not supported" : " is unknown") +
                         ", expected source, pad_to_multiple_of");
    }
  }
  choice.pad_to_multiple_of = multiple;
  return choice;
}

Result<DType> ReadDType(const YamlNode& node, const std::string& key) {
  const std::optional<DType> dtype = ReadDTypeName(node.scalar);
  if (node.kind != YamlNode::Kind::kScalar || !dtype) {
    return Expected(node, key, "bfloat16, float16 or float32");
  }
  return *dtype;
}

constexpr char kKeys[] = "merge_method, base_model, models, parameters, dtype, out_dtype, tokenizer, tokenizer_source";

Status UnknownKey(const std::string& key, const YamlNode& node) {
  if (key == "slices" || key == "modules") {
    return Unsupported(AtLine(node.line) + "the key " + Quote(key) +
                       " is not supported: models are merged layer by layer as they are, list them under \"models\"");
  }
  if (key == "chat_template") {
    return Unsupported(AtLine(node.line) +
                       "the key \"chat_template\" is not supported: the template comes with the tokenizer");
  }
  return Unsupported(AtLine(node.line) + "unknown key " + Quote(key) + ", expected one of " + kKeys);
}

// dtype is what mergekit computes in, and what it stores where nothing else is said; here sums are always f32 or wider.
Status ReadMember(const std::string& key, const YamlNode& node, Recipe& recipe, std::optional<DType>& dtype) {
  if (key == "merge_method") {
    DF_ASSIGN_OR_RETURN(recipe.method, ReadText(node, key));
  } else if (key == "models") {
    return ReadModels(node, recipe);
  } else if (key == "parameters") {
    DF_ASSIGN_OR_RETURN(recipe.parameters, ReadParameters(node, ""));
  } else if (node.kind == YamlNode::Kind::kNull) {
    return Status::Ok();
  } else if (key == "base_model") {
    DF_ASSIGN_OR_RETURN(recipe.base_model, ReadText(node, key));
  } else if (key == "dtype") {
    DF_ASSIGN_OR_RETURN(dtype, ReadDType(node, key));
  } else if (key == "out_dtype") {
    DF_ASSIGN_OR_RETURN(recipe.out_dtype, ReadDType(node, key));
  } else if (key == "tokenizer") {
    DF_ASSIGN_OR_RETURN(recipe.tokenizer, ReadTokenizer(node));
  } else if (key == "tokenizer_source") {
    DF_ASSIGN_OR_RETURN(const std::string source, ReadText(node, key));
    recipe.tokenizer = ChoiceOf(source);
  }
  return Status::Ok();
}

bool IsKnownKey(const std::string& key) {
  static constexpr std::string_view kKnown[] = {"merge_method", "base_model", "models",    "parameters",
                                                "dtype",        "out_dtype",  "tokenizer", "tokenizer_source"};
  return std::ranges::count(kKnown, key) > 0;
}

}  // namespace

std::optional<DType> ReadDTypeName(std::string_view name) {
  if (name == "bfloat16" || name == "bf16") return DType::kBf16;
  if (name == "float16" || name == "fp16" || name == "f16" || name == "half") return DType::kF16;
  if (name == "float32" || name == "fp32" || name == "f32" || name == "float") return DType::kF32;
  return std::nullopt;
}

Result<Recipe> ParseRecipe(std::string_view yaml) {
  DF_ASSIGN_OR_RETURN(const YamlNode root, ParseYaml(yaml));
  if (root.kind != YamlNode::Kind::kMap) return Expected(root, "the recipe", "keys with values");
  Recipe recipe;
  std::optional<DType> dtype;
  for (const auto& [key, node] : root.members) {
    if (!IsKnownKey(key)) return UnknownKey(key, node);
    DF_RETURN_IF_ERROR(ReadMember(key, node, recipe, dtype));
  }
  for (const char* key : {"merge_method", "models"}) {
    if (root.MemberOrNull(key) == nullptr) return InvalidArgument("the key \"" + std::string(key) + "\" is missing");
  }
  if (root.MemberOrNull("tokenizer") != nullptr && root.MemberOrNull("tokenizer_source") != nullptr) {
    return InvalidArgument("the keys \"tokenizer\" and \"tokenizer_source\" exclude each other");
  }
  if (!recipe.out_dtype) recipe.out_dtype = dtype;
  const Status checked = CompleteRecipe(recipe);
  if (checked.ok()) return recipe;
  if (FindMethodOrNull(recipe.method) != nullptr) return checked;
  return checked.Annotate("line " + std::to_string(root.MemberOrNull("merge_method")->line));
}

}  // namespace df::merge
