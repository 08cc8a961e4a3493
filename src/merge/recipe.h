// A merge recipe: mergekit's YAML, read strictly. What is not known, or known and not done here, is refused by name.
//
//   merge_method: ties
//   base_model: org/base
//   models:
//     - model: org/math+./lora        # a full model, a delta of the base, an adapter, or model+adapter
//       parameters:
//         weight: 0.5                 # a number,
//         density: [0.3, 0.7]         # one interpolated over the layers,
//     - model: ./coder
//       parameters:
//         weight:                     # or by the first filter that the tensor's name contains
//           - filter: mlp
//             value: 0.2
//           - value: 0.5
//   parameters: {lambda: 0.9}
//   out_dtype: bfloat16
//   tokenizer: {source: union}
#ifndef DELTAFOLD_MERGE_RECIPE_H_
#define DELTAFOLD_MERGE_RECIPE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "merge/method.h"
#include "tensor/dtype.h"

namespace df::merge {

// One value of a parameter: of the tensors whose name contains `filter` ("" and "*": of all).
struct ParameterCase {
  std::string filter = {};
  std::vector<double> values = {};  // at least one; more than one are interpolated over the layers
};

struct GivenParameter {
  std::vector<ParameterCase> cases = {};  // the first that fits counts
  size_t line = 0;                        // of the recipe; 0: not from a text
};

using GivenParameters = std::map<std::string, GivenParameter, std::less<>>;

struct RecipeModel {
  std::string model = {};  // as in the recipe
  GivenParameters parameters = {};
};

struct TokenizerChoice {
  enum class Source { kUnsaid, kBase, kUnion, kModel };
  Source source = Source::kUnsaid;  // unsaid: the base's, and every id must stand for the same token in all models
  std::string model = {};           // of kModel: as in the recipe
  size_t pad_to_multiple_of = 1;    // rows of the embedding; padding rows are 0
};

struct Recipe {
  std::string method = {};
  std::optional<std::string> base_model = {};
  // In the order of the recipe. The base is among them, at the front, only for a method that needs no base: where the
  // recipe lists it, and for slerp, whose t = 0 it is.
  std::vector<RecipeModel> models = {};
  GivenParameters parameters = {};
  std::optional<DType> out_dtype = {};  // of the weights; absent: each as in the base, else the first model
  TokenizerChoice tokenizer = {};
};

// Reads a recipe of at most 1 MB. The only errors are those of ParseYaml, kInvalidArgument (a value or number of models
// that is wrong, or missing) and kUnsupported (a key or a method that is not known or not done), all naming key, line,
// expected and got.
Result<Recipe> ParseRecipe(std::string_view yaml);

// Moves the base to where `Recipe` says, then checks what ParseRecipe does. For recipes that were put together.
Status CompleteRecipe(Recipe& recipe);

// The recipe as YAML that ParseRecipe reads back the same.
std::string RecipeText(const Recipe& recipe);

// The value for `tensor`, or nothing where no case fits. `depth` in [0, 1]: where the tensor's layer stands among the
// layers; 0 before, 1 after them and in a model of one layer.
std::optional<double> ValueOf(const GivenParameter& parameter, std::string_view tensor, double depth);

// What the recipe, which is complete, says for one tensor: of each parameter the model's value, else the whole merge's,
// else the method's. `depth` as above. The only error is kInvalidArgument: a required value that no case gives.
Result<Settings> SettingsFor(const Recipe& recipe, std::string_view tensor, double depth);

// "bfloat16", "float16", "float32" and their short names.
std::optional<DType> ReadDTypeName(std::string_view name);

}  // namespace df::merge

#endif  // DELTAFOLD_MERGE_RECIPE_H_
