// Any bytes as a merge recipe: what is accepted can be written, read back the same, and asked for any tensor.
#include <cmath>

#include "base/bytes.h"
#include "base/check.h"
#include "merge/recipe.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto recipe = df::merge::ParseRecipe(df::AsText({data, size}));
  if (!recipe.ok()) {
    const df::StatusCode code = recipe.status().code();
    DF_CHECK(code == df::StatusCode::kInvalidArgument || code == df::StatusCode::kUnsupported ||
             code == df::StatusCode::kCorrupt || code == df::StatusCode::kResourceExhausted);
    return 0;
  }
  const std::string text = df::merge::RecipeText(*recipe);
  const auto again = df::merge::ParseRecipe(text);
  DF_CHECK(again.ok() && df::merge::RecipeText(*again) == text);
  for (const double depth : {0.0, 0.37, 1.0}) {
    const auto settings = df::merge::SettingsFor(*recipe, "model.layers.3.mlp.up_proj.weight", depth);
    if (!settings.ok()) {
      DF_CHECK(settings.status().code() == df::StatusCode::kInvalidArgument);
      continue;
    }
    DF_CHECK(settings->weights.size() == recipe->models.size());
    for (const double weight : settings->weights) DF_CHECK(std::isfinite(weight));
  }
  return 0;
}
