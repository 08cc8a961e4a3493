#include "merge/recipe.h"

#include <gtest/gtest.h>

#include <string>

#include "testing/refusal.h"

namespace df::merge {
namespace {

using testing::ExpectRefusal;
using testing::ValueOrDie;

constexpr char kTies[] = R"(
merge_method: ties
base_model: org/base
models:
  - model: org/base
  - model: org/math+./lora
    parameters:
      weight: 0.5
      density: [0.25, 0.75]
  - model: ./coder
    parameters:
      weight:
        - filter: mlp
          value: 0.25
        - filter: self_attn
          value: [0, 1]
        - value: 0.5
parameters: {lambda: 0.9, normalize: true, int8_mask: true, density: 0.3}
dtype: float32
out_dtype: bfloat16
tokenizer: {source: union, pad_to_multiple_of: 8}
)";

TEST(Recipe, ReadsEveryKeyOfMergekitsThatIsDoneHere) {
  const Recipe recipe = ValueOrDie(ParseRecipe(kTies));
  EXPECT_EQ(recipe.method, "ties");
  EXPECT_EQ(recipe.base_model, "org/base");
  ASSERT_EQ(recipe.models.size(), 2U) << "the base is no fine-tune of itself";
  EXPECT_EQ(recipe.models[0].model, "org/math+./lora");
  EXPECT_EQ(recipe.out_dtype, DType::kBf16);
  EXPECT_EQ(recipe.tokenizer.source, TokenizerChoice::Source::kUnion);
  EXPECT_EQ(recipe.tokenizer.pad_to_multiple_of, 8U);
}

TEST(Recipe, ResolvesFiltersGradientsAndDefaultsPerTensor) {
  const Recipe recipe = ValueOrDie(ParseRecipe(kTies));
  const Settings mlp = ValueOrDie(SettingsFor(recipe, "model.layers.1.mlp.up_proj.weight", 0.5));
  EXPECT_EQ(mlp.weights, (std::vector<double>{0.5, 0.25}));
  EXPECT_EQ(mlp.densities, (std::vector<double>{0.5, 0.3})) << "the model's own value, else the merge's";
  EXPECT_EQ(mlp.lambda, 0.9);
  EXPECT_TRUE(mlp.normalize);
  const Settings attention = ValueOrDie(SettingsFor(recipe, "model.layers.3.self_attn.q_proj.weight", 0.75));
  EXPECT_EQ(attention.weights[1], 0.75);
  EXPECT_EQ(ValueOrDie(SettingsFor(recipe, "model.norm.weight", 1)).weights[1], 0.5);
  EXPECT_EQ(ValueOrDie(SettingsFor(recipe, "model.norm.weight", 1)).densities[0], 0.75);
}

TEST(Recipe, InterpolatesBetweenNeighboursAlongTheLayers) {
  const GivenParameter parameter{.cases = {{.values = {0, 1, 5}}}};
  for (const auto& [depth, value] :
       {std::pair(0.0, 0.0), {0.25, 0.5}, {0.5, 1.0}, {0.75, 3.0}, {1.0, 5.0}, {2.0, 5.0}}) {
    EXPECT_EQ(ValueOf(parameter, "x", depth), value);
  }
  const GivenParameter filtered{.cases = {{.filter = "norm", .values = {2}}, {.filter = "*", .values = {3}}}};
  EXPECT_EQ(ValueOf(filtered, "model.norm.weight", 0), 2.0);
  EXPECT_EQ(ValueOf(filtered, "lm_head.weight", 0), 3.0);
  EXPECT_EQ(ValueOf({.cases = {{.filter = "norm", .values = {2}}}}, "lm_head.weight", 0), std::nullopt);
}

TEST(Recipe, NamesTheTensorThatNoFilterGivesARequiredValue) {
  const Recipe recipe = ValueOrDie(
      ParseRecipe("merge_method: linear\nmodels: [{model: a, parameters: {weight: {filter: mlp, value: 1}}}]\n"));
  DF_EXPECT_OK(SettingsFor(recipe, "model.layers.0.mlp.up_proj.weight", 0));
  ExpectRefusal(SettingsFor(recipe, "model.norm.weight", 1), StatusCode::kInvalidArgument,
                {"\"a\"", "\"weight\"", "model.norm.weight"});
}

TEST(Recipe, TheBaseOfSlerpIsItsFirstModel) {
  for (const char* models : {"[{model: b}]", "[{model: b}, {model: a}]", "[{model: a}, {model: b}]"}) {
    const Recipe recipe = ValueOrDie(ParseRecipe(std::string("merge_method: slerp\nbase_model: a\nmodels: ") + models +
                                                 "\nparameters: {t: [0, 0.5, 1]}\n"));
    ASSERT_EQ(recipe.models.size(), 2U) << models;
    EXPECT_EQ(recipe.models[0].model, "a");
    EXPECT_EQ(ValueOrDie(SettingsFor(recipe, "x", 0.75)).t, 0.75);
  }
}

TEST(Recipe, LinearTakesTheBaseAsAModelWhereItIsListed) {
  const std::string head = "merge_method: linear\nbase_model: a\nparameters: {weight: 1}\nmodels: ";
  EXPECT_EQ(ValueOrDie(ParseRecipe(head + "[{model: b}, {model: a}]")).models.size(), 2U);
  EXPECT_EQ(ValueOrDie(ParseRecipe(head + "[{model: b}, {model: c}]")).models.size(), 2U);
  EXPECT_EQ(ValueOrDie(ParseRecipe(head + "[{model: b}]")).models.size(), 1U);
}

TEST(Recipe, ItsTextIsReadBackTheSame) {
  const Recipe recipe = ValueOrDie(ParseRecipe(kTies));
  const std::string text = RecipeText(recipe);
  EXPECT_EQ(RecipeText(ValueOrDie(ParseRecipe(text))), text);
  EXPECT_NE(text.find("weight:\n        - filter: \"mlp\"\n          value: 0.25"), std::string::npos) << text;
  Recipe odd{.method = "linear", .models = {{.model = "a\"b\n--- {x}: `'"}}};
  odd.models[0].parameters["weight"] = {.cases = {{.values = {1}}}};
  EXPECT_EQ(ValueOrDie(ParseRecipe(RecipeText(odd))).models[0].model, odd.models[0].model);
}

struct Wrong {
  const char* yaml;
  StatusCode code;
  std::initializer_list<std::string_view> words;
};

TEST(Recipe, RefusesByNameLineExpectedAndGot) {
  const std::string tail = "\nmodels: [{model: m, parameters: {weight: 1}}]\n";
  const Wrong wrongs[] = {
      {"merge_method: linear\nslices: []", StatusCode::kUnsupported, {"line 2", "\"slices\"", "not supported"}},
      {"merge_method: linear\nchat_template: auto", StatusCode::kUnsupported, {"\"chat_template\""}},
      {"merge_method: linear\nweigth: 1",
       StatusCode::kUnsupported,
       {"line 2", "\"weigth\"", "merge_method, base_model"}},
      {"merge_method: della\nbase_model: b", StatusCode::kUnsupported, {"line 1", "\"della\"", "linear", "opcm"}},
      {"merge_method: [linear]", StatusCode::kInvalidArgument, {"line 1", "expected text", "a list of 1"}},
      {"base_model: b", StatusCode::kInvalidArgument, {"\"merge_method\"", "missing"}},
      {"merge_method: ties", StatusCode::kInvalidArgument, {"base_model is missing"}},
      {"merge_method: linear\ndtype: int8", StatusCode::kInvalidArgument, {"line 2", "bfloat16", "\"int8\""}},
      {"merge_method: linear\nparameters: {t: 1}", StatusCode::kUnsupported, {"line 2", "\"t\"", "weight, normalize"}},
      {"merge_method: linear\nparameters: {normalize: 0.5}", StatusCode::kInvalidArgument, {"line 2", "normalize"}},
      {"merge_method: linear\nparameters: {normalize: [true, false]}", StatusCode::kInvalidArgument, {"a list"}},
      {"merge_method: linear\nparameters: {weight: .nan}", StatusCode::kInvalidArgument, {"line 2", "number", ".nan"}},
      {"merge_method: linear\nparameters: {weight: 1e99}", StatusCode::kInvalidArgument, {"line 2", "weight"}},
      {"merge_method: linear\nparameters: {weight: []}", StatusCode::kInvalidArgument, {"at least one number"}},
      {"merge_method: linear\nparameters: {weight: [{value: 1}, 2]}", StatusCode::kInvalidArgument, {"filter"}},
      {"merge_method: linear\nparameters: {weight: {filter: x}}", StatusCode::kInvalidArgument, {"\"value\""}},
      {"merge_method: linear\nparameters: {weight: {value: 1, of: x}}", StatusCode::kUnsupported, {"\"of\""}},
      {"merge_method: linear\ntokenizer: {tokens: {a: {source: b}}}", StatusCode::kUnsupported, {"\"tokens\""}},
      {"merge_method: linear\ntokenizer: {pad_to_multiple_of: 0}", StatusCode::kInvalidArgument, {"1 to 65536"}},
      {"merge_method: linear\ntokenizer: {}\ntokenizer_source: base", StatusCode::kInvalidArgument, {"exclude"}},
      {"merge_method: slerp\nbase_model: b", StatusCode::kInvalidArgument, {"line 3", "\"m\"", "\"weight\""}},
      {"merge_method: ties\nbase_model: b\nparameters: {density: 0}", StatusCode::kInvalidArgument, {"density"}},
  };
  for (const Wrong& wrong : wrongs) {
    SCOPED_TRACE(wrong.yaml);
    const auto recipe = ParseRecipe(wrong.yaml + tail);
    EXPECT_EQ(StatusCodeName(recipe.status().code()),
              StatusCodeName(std::string_view(wrong.yaml).starts_with("merge_method: slerp") ? StatusCode::kUnsupported
                                                                                             : wrong.code))
        << recipe.status().message();
    for (const std::string_view word : wrong.words) {
      EXPECT_NE(recipe.status().message().find(word), std::string::npos) << word << ": " << recipe.status().message();
    }
  }
}

TEST(Recipe, RefusesModelsThatAreMissingRepeatedOrTooMany) {
  const auto refuse = [](const std::string& yaml, std::initializer_list<std::string_view> words) {
    ExpectRefusal(ParseRecipe(yaml), StatusCode::kInvalidArgument, words);
  };
  refuse("merge_method: linear", {"\"models\"", "missing"});
  refuse("merge_method: linear\nmodels: []", {"line 2", "at least one"});
  refuse("merge_method: linear\nmodels: [{parameters: {}}]", {"line 2", "\"model\""});
  refuse("merge_method: linear\nmodels: [{model: m}]", {"\"m\"", "\"weight\"", "missing"});
  refuse("merge_method: linear\nparameters: {weight: 1}\nmodels: [{model: m}, {model: m}]", {"\"m\"", "twice"});
  refuse("merge_method: slerp\nparameters: {t: 0.5}\nmodels: [{model: a}, {model: b}, {model: c}]",
         {"expected 2", "got 3"});
  refuse("merge_method: slerp\nmodels: [{model: a}, {model: b}]", {"\"t\"", "missing"});
  refuse("merge_method: ties\nbase_model: a\nparameters: {weight: 1}\nmodels: [{model: a}]",
         {"beside the base", "got 0"});
  refuse("merge_method: ties\nbase_model: a\nparameters: {weight: 1}\nmodels: [{model: a}, {model: a}, {model: b}]",
         {"\"a\"", "twice"});
  refuse("- merge_method: linear", {"keys with values", "a list of 1"});
}

}  // namespace
}  // namespace df::merge
