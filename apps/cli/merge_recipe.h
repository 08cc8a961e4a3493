// The recipe of `deltafold merge`: a file, or a method's name and flags.
#ifndef DELTAFOLD_CLI_MERGE_RECIPE_H_
#define DELTAFOLD_CLI_MERGE_RECIPE_H_

#include <optional>
#include <string>
#include <vector>

#include "cli/flags.h"
#include "merge/recipe.h"

namespace df::cli {

struct RecipeArguments {
  std::string recipe;  // a file, or a method's name, with '-' for '_'
  std::string base;
  std::vector<std::string> models, settings;  // M or M=WEIGHT; NAME=VALUE
  std::string dtype, tokenizer;
  std::optional<double> energy, alpha, t, density, lambda;
  std::optional<uint64_t> rank;
  bool effective_rank = false;
};

void AddRecipeOptions(const Command& command, RecipeArguments& arguments);

// The only errors are those of reading the file, of ParseRecipe and CompleteRecipe, the file's name before them, and
// kInvalidArgument (flags that say what the file says).
Result<merge::Recipe> ReadRecipe(const RecipeArguments& arguments);

}  // namespace df::cli

#endif  // DELTAFOLD_CLI_MERGE_RECIPE_H_
