#include "merge/method.h"

#include <gtest/gtest.h>

#include "merge/merge_fixture.h"
#include "testing/refusal.h"

namespace df::merge {
namespace {

using testing::ExpectRefusal;

TEST(Methods, AreFoundByNameAndHaveTheirDefaults) {
  EXPECT_EQ(Methods().size(), 9U);
  EXPECT_EQ(FindMethodOrNull("model_stock"), nullptr);
  EXPECT_TRUE(DefaultSettings(*FindMethodOrNull("linear"), 2).normalize);
  EXPECT_FALSE(DefaultSettings(*FindMethodOrNull("task_arithmetic"), 2).normalize);
  EXPECT_TRUE(DefaultSettings(*FindMethodOrNull("ties"), 2).normalize);
  EXPECT_FALSE(DefaultSettings(*FindMethodOrNull("dare_ties"), 2).normalize);
  EXPECT_EQ(DefaultSettings(*FindMethodOrNull("monosoup"), 1).energy, 0.8);
  EXPECT_EQ(DefaultSettings(*FindMethodOrNull("opcm"), 1).alpha, 0.5);
  for (const Method& method : Methods()) {
    const Settings settings = DefaultSettings(method, 3);
    EXPECT_EQ(settings.weights, std::vector<double>(3, 1.0)) << method.name;
    EXPECT_EQ(settings.densities, std::vector<double>(3, 1.0)) << method.name;
  }
}

TEST(Methods, TakeEveryParameterThatTheyName) {
  for (const Method& method : Methods()) {
    for (const Parameter& parameter : method.parameters) {
      Settings settings = DefaultSettings(method, 2);
      DF_EXPECT_OK(SetParameter(method, parameter.name, std::nullopt, parameter.most, settings));
      DF_EXPECT_OK(SetParameter(method, parameter.name, 1, parameter.least, settings));
      EXPECT_FALSE(SetParameter(method, parameter.name, 0, 2 * parameter.most + 1, settings).ok());
    }
  }
}

TEST(Methods, SetAParameterForOneModelOrForAll) {
  const Method& ties = *FindMethodOrNull("ties");
  Settings settings = DefaultSettings(ties, 3);
  DF_ASSERT_OK(SetParameter(ties, "weight", std::nullopt, 0.5, settings));
  DF_ASSERT_OK(SetParameter(ties, "weight", 1, 2, settings));
  DF_ASSERT_OK(SetParameter(ties, "lambda", std::nullopt, 0.3, settings));
  EXPECT_EQ(settings.weights, (std::vector<double>{0.5, 2, 0.5}));
  EXPECT_EQ(settings.lambda, 0.3);
}

TEST(Methods, RefuseParametersByNameAndRange) {
  const Method& ties = *FindMethodOrNull("ties");
  Settings settings = DefaultSettings(ties, 2);
  const auto refuse = [&](std::string_view name, double value, std::initializer_list<std::string_view> words) {
    ExpectRefusal(SetParameter(ties, name, std::nullopt, value, settings), StatusCode::kInvalidArgument, words);
  };
  refuse("epsilon", 1, {"ties", "no parameter epsilon", "weight, density, lambda, normalize"});
  refuse("density", 0, {"density", "ties", "from 0.000001 to 1"});
  refuse("density", 1.5, {"density", "1.5"});
  refuse("weight", NAN, {"weight"});
  refuse("normalize", 0.5, {"normalize", "whole number from 0 to 1"});
}

TEST(Methods, RefuseGroupsThatTheyCannotMerge) {
  const Stored a(Shape{2, 3}, RandomValues(6, 1)), turned(Shape{3, 2}, RandomValues(6, 2));
  const auto refuse = [](std::string_view method, const TensorGroup& group, StatusCode code,
                         std::initializer_list<std::string_view> words) {
    ExpectRefusal(TryMerge(method, group), code, words);
  };
  refuse("ties", {.name = "w", .models = {a.view()}}, StatusCode::kInvalidArgument, {"tensor w", "ties", "base"});
  refuse("linear", {.name = "w"}, StatusCode::kInvalidArgument, {"linear", "at least 1", "not 0"});
  refuse("slerp", {.name = "w", .models = {a.view()}}, StatusCode::kInvalidArgument, {"slerp merges 2 models, not 1"});
  refuse("linear", {.name = "w", .models = {a.view(), turned.view()}}, StatusCode::kInvalidArgument,
         {"tensor w", "[3, 2]", "model 2", "[2, 3]"});
  refuse("ties", {.name = "w", .base = turned.view(), .models = {a.view()}}, StatusCode::kInvalidArgument,
         {"the base", "[3, 2]"});
  TensorView whole = a.view();
  whole.dtype = DType::kI32;
  refuse("linear", {.name = "w", .models = {a.view(), whole}}, StatusCode::kUnsupported, {"model 2", "I32", "BF16"});
  whole = a.view();
  whole.shape = Shape{2, 4};
  refuse("linear", {.name = "w", .models = {whole}}, StatusCode::kInvalidArgument, {"6 elements", "[2, 4]"});
  const TensorGroup group{.name = "w", .base = a.view(), .models = {a.view()}};
  ThreadPool pool(1);
  ExpectRefusal(Merge(pool, *FindMethodOrNull("linear"), group, {}, [](size_t, std::span<const float>) {}),
                StatusCode::kInvalidArgument, {"settings for 0 models", "1"});
  ExpectRefusal(TryMerge("svd_average", group), StatusCode::kInvalidArgument, {"rank or an energy", "neither"});
  ExpectRefusal(TryMerge("svd_average", group, {{"rank", {1}}, {"energy", {0.5}}}), StatusCode::kInvalidArgument,
                {"not both"});
}

TEST(Methods, NameTheirWays) {
  for (const Way way : {Way::kElementwise, Way::kCopied, Way::kGram, Way::kRandomised}) {
    EXPECT_FALSE(WayName(way).empty());
  }
}

}  // namespace
}  // namespace df::merge
