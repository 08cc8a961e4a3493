#include "cli/merge_recipe.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "base/atomic_file.h"
#include "cli/command.h"
#include "cli/nearest.h"

namespace df::cli {
namespace {

constexpr size_t kMaxRecipeBytes = size_t{1} << 20;

std::string WithUnderscores(std::string name) {
  std::ranges::replace(name, '-', '_');
  return name;
}

std::optional<double> Number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

merge::GivenParameter Given(double value) { return {.cases = {{.filter = "", .values = {value}}}}; }

// "M=0.5"; a directory's name may hold a '=' itself.
merge::RecipeModel ReadModel(const std::string& text) {
  std::error_code error;
  const size_t equals = text.rfind('=');
  const std::optional<double> weight =
      equals == std::string::npos ? std::nullopt : Number(std::string_view(text).substr(equals + 1));
  if (!weight || std::filesystem::is_directory(text, error)) return {.model = text, .parameters = {}};
  merge::RecipeModel model{.model = text.substr(0, equals), .parameters = {}};
  model.parameters["weight"] = Given(*weight);
  return model;
}

Status ReadSettings(const RecipeArguments& arguments, merge::Recipe& recipe) {
  const auto set = [&](const char* name, const auto& value) {
    if (value) recipe.parameters[name] = Given(static_cast<double>(*value));
  };
  set("rank", arguments.rank);
  set("energy", arguments.energy);
  set("alpha", arguments.alpha);
  set("t", arguments.t);
  set("density", arguments.density);
  set("lambda", arguments.lambda);
  if (arguments.effective_rank) recipe.parameters["effective_rank"] = Given(1);
  for (const std::string& setting : arguments.settings) {
    const size_t equals = setting.find('=');
    const std::string text = equals == std::string::npos ? "" : setting.substr(equals + 1);
    const std::optional<double> value = text == "true" ? 1 : text == "false" ? 0 : Number(text);
    if (!value) return InvalidArgument("--set: expected NAME=NUMBER, NAME=true or NAME=false, got \"" + setting + "\"");
    recipe.parameters[setting.substr(0, equals)] = Given(*value);
  }
  return Status::Ok();
}

// A weight of 1 for each model that says none.
void FillWeights(const merge::Method& method, merge::Recipe& recipe) {
  const merge::Parameter* const weight = merge::FindParameterOrNull(method, "weight");
  if (weight == nullptr || recipe.parameters.contains("weight")) return;
  const auto has_own = [](const merge::RecipeModel& model) { return model.parameters.contains("weight"); };
  if (!std::ranges::all_of(recipe.models, has_own)) recipe.parameters["weight"] = Given(1);
}

// "there are linear, ...", and the one that may be meant.
std::string KnownMethods(const std::string& wanted) {
  std::string text;
  std::vector<std::string> names;
  for (const merge::Method& method : merge::Methods()) {
    text += (names.empty() ? "" : ", ") + std::string(method.name);
    names.emplace_back(method.name);
  }
  const std::string near = Nearest(wanted, names);
  return "there are " + text + (near.empty() ? "" : "; did you mean " + near + "?");
}

Status ReadTokenizer(const std::string& text, merge::TokenizerChoice& tokenizer) {
  using Source = merge::TokenizerChoice::Source;
  tokenizer.source = text == "base" ? Source::kBase : text == "union" ? Source::kUnion : Source::kModel;
  if (tokenizer.source == Source::kModel) tokenizer.model = text;
  return Status::Ok();
}

Result<merge::Recipe> FromFlags(const RecipeArguments& arguments, const merge::Method& method) {
  merge::Recipe recipe{.method = std::string(method.name)};
  if (arguments.models.empty()) return InvalidArgument("--model is missing");
  if (!arguments.base.empty()) recipe.base_model = arguments.base;
  for (const std::string& model : arguments.models) recipe.models.push_back(ReadModel(model));
  DF_RETURN_IF_ERROR(ReadSettings(arguments, recipe));
  FillWeights(method, recipe);
  if (!arguments.tokenizer.empty()) DF_RETURN_IF_ERROR(ReadTokenizer(arguments.tokenizer, recipe.tokenizer));
  DF_RETURN_IF_ERROR(merge::CompleteRecipe(recipe));
  return recipe;
}

Result<merge::Recipe> FromFile(const RecipeArguments& arguments) {
  const bool has_flags = !arguments.base.empty() || !arguments.models.empty() || !arguments.settings.empty() ||
                         !arguments.tokenizer.empty() || arguments.energy || arguments.alpha || arguments.t ||
                         arguments.density || arguments.lambda || arguments.rank || arguments.effective_rank;
  std::error_code error;
  if (has_flags && !std::filesystem::exists(arguments.recipe, error)) {
    return InvalidArgument("unknown method \"" + arguments.recipe +
                           "\", and no recipe file of that name: " + KnownMethods(WithUnderscores(arguments.recipe)));
  }
  if (has_flags) {
    return InvalidArgument(
        "--base, --model, --set and the flags of methods go with a method's name, not with a recipe "
        "file, which says all of that itself");
  }
  const Result<std::string> text = ReadFileBounded(arguments.recipe, kMaxRecipeBytes);
  if (!text.ok() && text.status().code() == StatusCode::kNotFound) {
    return NotFound("no recipe file \"" + arguments.recipe +
                    "\", and no method of that name: " + KnownMethods(WithUnderscores(arguments.recipe)));
  }
  if (!text.ok()) return text.status();
  const Result<merge::Recipe> recipe = merge::ParseRecipe(*text);
  if (!recipe.ok()) return FromFiles(recipe.status().Annotate(arguments.recipe));
  return *recipe;
}

}  // namespace

void AddRecipeOptions(const Command& command, RecipeArguments& arguments) {
  command.Option("recipe", arguments.recipe, "Recipe file (mergekit's YAML), or a method: see below")
      .Required()
      .Value("RECIPE|METHOD");
  command.Option("--base", arguments.base, "Base model: directory, or hub id in the local cache").Value("MODEL");
  command
      .Option(
          "--model", arguments.models,
          "To be merged: a model, a delta of the base, an adapter, or model+adapter; with its weight [1]. Repeatable")
      .OneValueEach()
      .Value("MODEL[=WEIGHT]");
  command.Option("--rank", arguments.rank, "svd-average: singular values kept of each difference").Value("R");
  command.Option("--energy", arguments.energy, "svd-average, monosoup: share of the squares to be kept").Value("E");
  command.Switch("--effective-rank", arguments.effective_rank, "monosoup: keep as many as the spectrum's entropy says");
  command.Option("--alpha", arguments.alpha, "opcm: share of the spectrum that is projected out whole").Value("A");
  command.Option("--t", arguments.t, "slerp: 0 the first model, 1 the second").Value("T");
  command.Option("--density", arguments.density, "ties, dare: share of the entries that is kept").Value("D");
  command.Option("--lambda", arguments.lambda, "Factor of the merged difference").Value("L");
  command.Option("--set", arguments.settings, "Any parameter of the method (seed=7, normalize=false). Repeatable")
      .OneValueEach()
      .Value("NAME=VALUE");
  command.Option("--tokenizer", arguments.tokenizer, "Of differing ones: base, union, or a model's").Value("SOURCE");
  command.Option("--dtype", arguments.dtype, "Stored element type: bf16, f16, f32 [the recipe's, else the base's]")
      .OneOf({"bf16", "f16", "f32"})
      .Value("TYPE");
}

Result<merge::Recipe> ReadRecipe(const RecipeArguments& arguments) {
  std::error_code error;
  const merge::Method* const method = merge::FindMethodOrNull(WithUnderscores(arguments.recipe));
  const bool is_method = method != nullptr && !std::filesystem::is_regular_file(arguments.recipe, error);
  DF_ASSIGN_OR_RETURN(merge::Recipe recipe, is_method ? FromFlags(arguments, *method) : FromFile(arguments));
  if (!arguments.dtype.empty()) recipe.out_dtype = merge::ReadDTypeName(arguments.dtype);
  return recipe;
}

}  // namespace df::cli
