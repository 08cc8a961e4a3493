// How the newest checkpoint is merged with the best: what a soup's method is as a recipe of merge/.
#include <algorithm>

#include "base/json.h"
#include "tools/soup.h"

namespace df::tools {
namespace {

// Its name as merge/ has it, and the values that count both models alike where none are given.
SoupMethod Completed(SoupMethod method) {
  std::ranges::replace(method.name, '-', '_');
  const merge::Method* const known = merge::FindMethodOrNull(method.name);
  if (known == nullptr) return method;
  const auto default_to = [&](const char* name, double value) {
    if (merge::FindParameterOrNull(*known, name) != nullptr) method.parameters.try_emplace(name, std::vector{value});
  };
  default_to("weight", 0.5);
  default_to("t", 0.5);
  const bool is_cut = method.parameters.contains("rank") || method.parameters.contains("energy");
  if (method.name == "svd_average" && !is_cut) default_to("energy", kSoupEnergy);
  return method;
}

// "16", "0.9".
std::string NumberText(double value) {
  std::string text = DumpJson(Json(value));
  if (text.ends_with(".0")) text.resize(text.size() - 2);
  return text;
}

}  // namespace

std::string MethodText(const SoupMethod& given) {
  const SoupMethod method = Completed(given);
  std::string text = method.name;
  for (const auto& [name, values] : method.parameters) {
    text += " " + name + "=";
    for (size_t i = 0; i < values.size(); ++i) text += (i > 0 ? "," : "") + NumberText(values[i]);
  }
  if (method.out_dtype) text += " dtype=" + std::string(DTypeName(*method.out_dtype));
  return text;
}

Result<merge::Recipe> SoupRecipe(const SoupMethod& method, const std::string& base, const std::string& best,
                                 const std::string& newest) {
  const SoupMethod complete = Completed(method);
  merge::Recipe recipe{.method = complete.name, .models = {{.model = best}, {.model = newest}}};
  recipe.out_dtype = method.out_dtype;
  // slerp would take a base for its first model.
  const merge::Method* const known = merge::FindMethodOrNull(complete.name);
  if (!base.empty() && complete.name != "slerp") recipe.base_model = base;
  for (const auto& [name, values] : complete.parameters) {
    const merge::Parameter* const parameter = known == nullptr ? nullptr : merge::FindParameterOrNull(*known, name);
    if (values.size() == 1) {
      recipe.parameters[name] = {.cases = {{.values = values}}};
    } else if (values.size() == 2 && (parameter == nullptr || parameter->per_model)) {
      for (size_t i = 0; i < 2; ++i) recipe.models[i].parameters[name] = {.cases = {{.values = {values[i]}}}};
    } else {
      return InvalidArgument("parameter " + name + " has " + std::to_string(values.size()) +
                             " values: expected one, or of those that each model has two, the best's and the newest's");
    }
  }
  DF_RETURN_IF_ERROR(merge::CompleteRecipe(recipe));
  return recipe;
}

}  // namespace df::tools
