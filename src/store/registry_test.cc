#include "store/registry.h"

#include <gtest/gtest.h>

#include "testing/status_matchers.h"

namespace df {
namespace {

using testing::StatusOf;
using testing::ValueOrDie;

std::shared_ptr<const Variant> Named(const std::string& name, const std::string& digest = "d") {
  auto weights = std::make_shared<VariantWeights>();
  weights->digest = digest;
  auto variant = std::make_shared<Variant>();
  variant->name = name;
  variant->generation = FixedGeneration(std::move(weights));
  return variant;
}

std::shared_ptr<const Variant> Base() {
  auto base = std::make_shared<Variant>();
  base->name = "tiny";
  return base;
}

class RegistryTest : public ::testing::Test {
 protected:
  Status Add(std::shared_ptr<const Variant> variant) { return StatusOf(registry_.Put(std::move(variant), {})); }

  const std::shared_ptr<const Variant> base_ = Base();
  Registry registry_{"tiny", base_};
};

TEST_F(RegistryTest, NoNameHidesBaseColonName) {
  EXPECT_EQ(Add(Named("tiny:math")).code(), StatusCode::kInvalidArgument);
  DF_EXPECT_OK(Add(Named("tiny-math:1")));
}

TEST_F(RegistryTest, FindsByNameAndByBaseColonName) {
  DF_EXPECT_OK(Add(Named("math")));
  DF_EXPECT_OK(Add(Named("org/sql")));
  EXPECT_EQ(registry_.FindOrNull("tiny"), base_);
  EXPECT_EQ(registry_.FindOrNull("math")->name, "math");
  EXPECT_EQ(registry_.FindOrNull("tiny:math")->name, "math");
  EXPECT_EQ(registry_.FindOrNull("tiny:org/sql")->name, "org/sql");
  for (const char* unknown : {"", "Math", "math ", "tiny:", "tiny:tiny", "other:math", ":math", "math:math"}) {
    EXPECT_EQ(registry_.FindOrNull(unknown), nullptr) << unknown;
  }
}

TEST_F(RegistryTest, ListsTheBaseFirstAndThenByName) {
  DF_EXPECT_OK(Add(Named("zebra")));
  DF_EXPECT_OK(Add(Named("ape")));
  std::vector<std::string> names;
  for (const auto& variant : registry_.List()) names.push_back(variant->name);
  EXPECT_EQ(names, (std::vector<std::string>{"tiny", "ape", "zebra"}));
}

TEST_F(RegistryTest, RefusesTakenAndBadNames) {
  DF_EXPECT_OK(Add(Named("math")));
  EXPECT_EQ(Add(Named("math")).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(Add(Named("tiny")).code(), StatusCode::kFailedPrecondition);
  for (const std::string bad : {"", "a b", "a\nb", "a,b", "a\"b", "a'b", "a\\b", "a=b", "..", "../a", "a/../b", "./a",
                                "/a", "a/", "a//b", "\x80", "\x7F"}) {
    EXPECT_EQ(Add(Named(bad)).code(), StatusCode::kInvalidArgument) << bad;
  }
  EXPECT_EQ(Add(Named(std::string(257, 'a'))).code(), StatusCode::kInvalidArgument);
  DF_EXPECT_OK(Add(Named(std::string(256, 'a'))));
  DF_EXPECT_OK(Add(Named("a..b")));
  DF_EXPECT_OK(Add(Named("\xC3\xA9t\xC3\xA9")));
}

TEST_F(RegistryTest, ReplacesByCompareAndSwap) {
  const auto first = Named("math", "1");
  DF_EXPECT_OK(Add(first));
  const auto stale = registry_.Put(Named("math", "3"), {.replace = true, .expected_generation = "2"});
  EXPECT_TRUE(IsGenerationMismatch(StatusOf(stale)));
  EXPECT_EQ(registry_.FindOrNull("math"), first);
  EXPECT_EQ(ValueOrDie(registry_.Put(Named("math", "2"), {.replace = true, .expected_generation = "1"})), first);
  EXPECT_EQ(registry_.FindOrNull("math")->generation->info().digest, "2");
  EXPECT_EQ(StatusOf(registry_.Put(Named("sql"), {.replace = true, .expected_generation = "1"})).code(),
            StatusCode::kNotFound);
  EXPECT_EQ(ValueOrDie(registry_.Put(Named("sql"), {.replace = true})), nullptr);
  EXPECT_EQ(StatusOf(registry_.Put(Named("tiny"), {.replace = true})).code(), StatusCode::kFailedPrecondition);
}

TEST_F(RegistryTest, RemovesWhatIsExpected) {
  const auto math = Named("math", "1");
  DF_EXPECT_OK(Add(math));
  EXPECT_TRUE(IsGenerationMismatch(StatusOf(registry_.Remove("math", "2"))));
  EXPECT_EQ(StatusOf(registry_.Remove("sql", "")).code(), StatusCode::kNotFound);
  EXPECT_EQ(StatusOf(registry_.Remove("tiny", "")).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(ValueOrDie(registry_.Remove("math", "1")), math);
  EXPECT_EQ(registry_.FindOrNull("math"), nullptr);
}

std::shared_ptr<const Variant> On(const std::string& parent, const Variant& variant) {
  auto child = std::make_shared<Variant>(variant);
  child->parent = parent;
  return child;
}

TEST_F(RegistryTest, KnowsTheChildrenOfANameThroughEveryChange) {
  const auto first = Named("first"), second = Named("second");
  EXPECT_EQ(registry_.ChildOf("math"), "");
  DF_EXPECT_OK(Add(On("math", *second)));
  DF_EXPECT_OK(Add(On("math", *first)));
  EXPECT_EQ(registry_.ChildOf("math"), "first");
  ValueOrDie(registry_.Put(On("math", *first), {.replace = true}));  // the same once more
  EXPECT_EQ(registry_.ChildOf("math"), "first");
  ValueOrDie(registry_.Put(On("sql", *first), {.replace = true}));
  EXPECT_EQ(registry_.ChildOf("math"), "second");
  EXPECT_EQ(registry_.ChildOf("sql"), "first");
  ValueOrDie(registry_.Put(first, {.replace = true}));
  EXPECT_EQ(registry_.ChildOf("sql"), "");
  ValueOrDie(registry_.Remove("second", ""));
  EXPECT_EQ(registry_.ChildOf("math"), "");
  EXPECT_EQ(registry_.ChildOf(""), "");
}

TEST_F(RegistryTest, KnowsWhetherAGenerationHasANameThroughEveryChange) {
  const auto variant = Named("a"), other = Named("b");
  auto alias = std::make_shared<Variant>(*variant);
  alias->name = "alias";
  EXPECT_FALSE(registry_.HasNameFor(*variant->generation));
  DF_EXPECT_OK(Add(variant));
  DF_EXPECT_OK(Add(alias));
  ValueOrDie(registry_.Remove("a", ""));
  EXPECT_TRUE(registry_.HasNameFor(*variant->generation));
  ValueOrDie(registry_.Put(alias, {.replace = true}));
  EXPECT_TRUE(registry_.HasNameFor(*variant->generation));
  auto changed = std::make_shared<Variant>(*other);
  changed->name = "alias";
  ValueOrDie(registry_.Put(changed, {.replace = true}));
  EXPECT_FALSE(registry_.HasNameFor(*variant->generation));
  EXPECT_TRUE(registry_.HasNameFor(*other->generation));
}

}  // namespace
}  // namespace df
