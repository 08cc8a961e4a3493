// What a recipe must be, and what it says for one tensor.
#include <algorithm>
#include <cctype>
#include <cmath>

#include "merge/recipe.h"
#include "merge/yaml_text.h"

namespace df::merge {
namespace {

std::string Quote(std::string_view text) { return "\"" + std::string(text.substr(0, 120)) + "\""; }

// mergekit's word for how it holds masks in memory: accepted everywhere, and nothing to us.
constexpr std::string_view kInt8Mask = "int8_mask";

std::string MethodNames() {
  std::string names;
  for (const Method& method : Methods()) names += (names.empty() ? "" : ", ") + std::string(method.name);
  return names;
}

std::string ParameterNames(const Method& method) {
  std::string names;
  for (const Parameter& parameter : method.parameters) {
    names += (names.empty() ? "" : ", ") + std::string(parameter.name);
  }
  return names.empty() ? "none" : names;
}

bool IsSlerp(const Method& method) { return method.name == "slerp"; }

void PlaceBase(const Method& method, Recipe& recipe) {
  if (!recipe.base_model) return;
  const auto is_base = [&](const RecipeModel& model) { return model.model == *recipe.base_model; };
  const auto found = std::ranges::find_if(recipe.models, is_base);
  const bool is_listed = found != recipe.models.end();
  if (is_listed && !method.needs_base) std::rotate(recipe.models.begin(), found, found + 1);
  if (is_listed && method.needs_base) recipe.models.erase(found);
  if (!is_listed && IsSlerp(method)) recipe.models.insert(recipe.models.begin(), {.model = *recipe.base_model});
}

Status CheckModels(const Recipe& recipe, const Method& method) {
  const std::string name = "merge_method " + recipe.method;
  if (method.needs_base && !recipe.base_model) return InvalidArgument(name + ": base_model is missing");
  for (size_t i = 0; i < recipe.models.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (recipe.models[i].model != recipe.models[j].model) continue;
      return InvalidArgument("model " + Quote(recipe.models[i].model) + " is listed twice: give it one weight");
    }
    if (method.needs_base && recipe.models[i].model == *recipe.base_model) {
      return InvalidArgument("model " + Quote(recipe.models[i].model) + ", the base, is listed twice");
    }
  }
  const size_t n = recipe.models.size();
  if (n >= method.min_models && n <= method.max_models) return Status::Ok();
  std::string expected = "at least " + std::to_string(method.min_models);
  if (method.max_models != SIZE_MAX) {
    expected = std::to_string(method.min_models);
    if (method.max_models != method.min_models) expected += " to " + std::to_string(method.max_models);
  }
  return InvalidArgument(name + ": expected " + expected + " models" +
                         (method.needs_base   ? " beside the base"
                          : recipe.base_model ? ", the base counted"
                                              : "") +
                         ", got " + std::to_string(n));
}

// A number that stands for a flag or a count is not interpolated.
Status CheckShape(const std::string& what, const GivenParameter& given, const Parameter& parameter) {
  if (given.cases.empty()) return InvalidArgument(AtLine(given.line) + what + " has no value");
  for (const ParameterCase& entry : given.cases) {
    if (entry.values.empty()) return InvalidArgument(AtLine(given.line) + what + " has no value");
    if (entry.values.size() > 1 && parameter.kind != ParameterKind::kNumber) {
      return InvalidArgument(AtLine(given.line) + what + ": expected " +
                             (parameter.kind == ParameterKind::kFlag ? "true or false" : "a whole number") +
                             ", got a list");
    }
  }
  return Status::Ok();
}

// `model`: whose parameters they are; nothing: the whole merge's.
Status CheckParameters(const GivenParameters& parameters, const Method& method, const std::string* model) {
  Settings scratch = DefaultSettings(method, 1);
  for (const auto& [name, given] : parameters) {
    if (name == kInt8Mask) continue;
    const std::string what = (model ? "model " + Quote(*model) + ": " : "") + "parameter " + Quote(name);
    const Parameter* const parameter = FindParameterOrNull(method, name);
    if (parameter == nullptr) {
      return Unsupported(AtLine(given.line) + what + " is unknown to " + std::string(method.name) + ", expected " +
                         ParameterNames(method));
    }
    if (model && !parameter->per_model) {
      return InvalidArgument(AtLine(given.line) + what +
                             " is of the whole merge: set it under the recipe's own \"parameters\"");
    }
    DF_RETURN_IF_ERROR(CheckShape(what, given, *parameter));
    for (const ParameterCase& entry : given.cases) {
      for (const double value : entry.values) {
        const Status fits = SetParameter(method, name, std::nullopt, value, scratch);
        if (!fits.ok())
          return InvalidArgument(AtLine(given.line) + (model ? "model " + Quote(*model) + ": " : "") + fits.message());
      }
    }
  }
  return Status::Ok();
}

Status Missing(const Parameter& parameter, const RecipeModel* model, std::string_view tensor) {
  return InvalidArgument((model ? "model " + Quote(model->model) + ": " : "") + "parameter " + Quote(parameter.name) +
                         " is missing" + (tensor.empty() ? "" : " for tensor " + std::string(tensor)));
}

// Of those one is to be given, as in a recipe and as flags of the direct form.
Status MissingOneOf(const Method& method) {
  std::string names, flags;
  for (const std::string_view name : method.one_of) {
    const std::string between = names.empty() ? "" : " or ";
    names += between + Quote(name);
    flags += between + "--" + std::string(name) + " " + static_cast<char>(std::toupper(name[0]));
  }
  return InvalidArgument("merge_method " + std::string(method.name) + ": parameter " + names + " is missing (" + flags +
                         ")");
}

Status CheckRequired(const Recipe& recipe, const Method& method) {
  const auto is_given = [&recipe](std::string_view name) { return recipe.parameters.contains(name); };
  if (!method.one_of.empty() && std::ranges::none_of(method.one_of, is_given)) return MissingOneOf(method);
  for (const Parameter& parameter : method.parameters) {
    if (!parameter.is_required || recipe.parameters.contains(parameter.name)) continue;
    if (!parameter.per_model) return Missing(parameter, nullptr, "");
    for (const RecipeModel& model : recipe.models) {
      if (!model.parameters.contains(parameter.name)) return Missing(parameter, &model, "");
    }
  }
  return Status::Ok();
}

// Nothing where it says nothing about the tensor.
std::optional<double> Given(const GivenParameters& parameters, std::string_view name, std::string_view tensor,
                            double depth) {
  const auto found = parameters.find(name);
  return found == parameters.end() ? std::nullopt : ValueOf(found->second, tensor, depth);
}

}  // namespace

std::optional<double> ValueOf(const GivenParameter& parameter, std::string_view tensor, double depth) {
  for (const ParameterCase& entry : parameter.cases) {
    const bool fits =
        entry.filter.empty() || entry.filter == "*" || tensor.find(entry.filter) != std::string_view::npos;
    if (!fits || entry.values.empty()) continue;
    const double at = std::clamp(depth, 0.0, 1.0) * static_cast<double>(entry.values.size() - 1);
    const auto below = static_cast<size_t>(at);
    const size_t above = std::min(below + 1, entry.values.size() - 1);
    const double share = at - static_cast<double>(below);
    return share == 0 ? entry.values[below] : (1 - share) * entry.values[below] + share * entry.values[above];
  }
  return std::nullopt;
}

Result<Settings> SettingsFor(const Recipe& recipe, std::string_view tensor, double depth) {
  const Method* const method = FindMethodOrNull(recipe.method);
  if (method == nullptr) return Internal("a recipe that is not complete");
  Settings settings = DefaultSettings(*method, recipe.models.size());
  for (const Parameter& parameter : method->parameters) {
    const std::optional<double> common = Given(recipe.parameters, parameter.name, tensor, depth);
    if (common) DF_RETURN_IF_ERROR(SetParameter(*method, parameter.name, std::nullopt, *common, settings));
    if (!parameter.per_model) {
      if (!common && parameter.is_required) return Missing(parameter, nullptr, tensor);
      continue;
    }
    for (size_t i = 0; i < recipe.models.size(); ++i) {
      const std::optional<double> own = Given(recipe.models[i].parameters, parameter.name, tensor, depth);
      if (own) DF_RETURN_IF_ERROR(SetParameter(*method, parameter.name, i, *own, settings));
      if (!own && !common && parameter.is_required) return Missing(parameter, &recipe.models[i], tensor);
    }
  }
  return settings;
}

Status CompleteRecipe(Recipe& recipe) {
  const Method* const method = FindMethodOrNull(recipe.method);
  if (method == nullptr) {
    return Unsupported("merge_method: expected one of " + MethodNames() + ", got " + Quote(recipe.method));
  }
  PlaceBase(*method, recipe);
  DF_RETURN_IF_ERROR(CheckModels(recipe, *method));
  DF_RETURN_IF_ERROR(CheckParameters(recipe.parameters, *method, nullptr));
  for (const RecipeModel& model : recipe.models) {
    DF_RETURN_IF_ERROR(CheckParameters(model.parameters, *method, &model.model));
  }
  return CheckRequired(recipe, *method);
}

}  // namespace df::merge
