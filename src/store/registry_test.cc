#include "store/registry.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "testing/tiny_family.h"

namespace df {
namespace {

using testing::StatusOf;
using testing::ValueOrDie;

class RegistryTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    directory_ = std::make_unique<testing::TemporaryDirectory>("deltafold-registry-test");
    testing::WriteTinyBase(Path("base"), 1);
    testing::WriteTinyBase(Path("other"), 9);
    testing::WriteTinyDelta(Path("delta"), Path("base"), 2);
    testing::WriteTinyDelta(Path("foreign"), Path("other"), 3);
    testing::WriteTinyAdapter(Path("adapter"), {.seed = 4});
    context_ = std::make_unique<KernelContext>(1);
    base_ = ValueOrDie(LoadBaseVariant(*context_, "tiny", Path("base")));
  }
  static void TearDownTestSuite() {
    base_ = {};
    context_.reset();
    directory_.reset();
  }

  static std::string Path(const std::string& name) { return *directory_ / name; }
  static Result<std::shared_ptr<const Variant>> Load(const std::string& name) {
    return LoadVariant(*context_, base_, name, Path(name));
  }
  // A copy of a delta, to be spoilt.
  static std::string CopyOf(const std::string& name, const std::string& copy) {
    std::filesystem::copy(Path(name), Path(copy), std::filesystem::copy_options::recursive);
    return Path(copy);
  }

  static inline std::unique_ptr<testing::TemporaryDirectory> directory_;
  static inline std::unique_ptr<KernelContext> context_;
  static inline LoadedBase base_;
};

std::shared_ptr<const Variant> Named(const std::string& name) {
  auto variant = std::make_shared<Variant>();
  variant->name = name;
  variant->generation = FixedGeneration(std::make_shared<const VariantWeights>());
  return variant;
}

TEST_F(RegistryTest, TellsBaseDeltaAndAdapterApartByTheirFiles) {
  EXPECT_EQ(base_.variant->KindName(), "base");
  EXPECT_EQ(ValueOrDie(Load("delta"))->KindName(), "delta");
  EXPECT_EQ(ValueOrDie(Load("adapter"))->KindName(), "lora");
}

TEST_F(RegistryTest, FindsByNameAndByBaseColonName) {
  Registry registry("tiny", base_.variant);
  DF_EXPECT_OK(registry.Add(Named("math")));
  DF_EXPECT_OK(registry.Add(Named("org/sql")));
  EXPECT_EQ(registry.FindOrNull("tiny"), base_.variant);
  EXPECT_EQ(registry.FindOrNull("math")->name, "math");
  EXPECT_EQ(registry.FindOrNull("tiny:math")->name, "math");
  EXPECT_EQ(registry.FindOrNull("tiny:org/sql")->name, "org/sql");
  for (const char* unknown : {"", "Math", "math ", "tiny:", "tiny:tiny", "other:math", ":math", "math:math"}) {
    EXPECT_EQ(registry.FindOrNull(unknown), nullptr) << unknown;
  }
}

TEST_F(RegistryTest, ListsTheBaseFirstAndThenByName) {
  Registry registry("tiny", base_.variant);
  DF_EXPECT_OK(registry.Add(Named("zebra")));
  DF_EXPECT_OK(registry.Add(Named("ape")));
  std::vector<std::string> names;
  for (const auto& variant : registry.List()) names.push_back(variant->name);
  EXPECT_EQ(names, (std::vector<std::string>{"tiny", "ape", "zebra"}));
}

TEST_F(RegistryTest, RefusesTakenAndBadNames) {
  Registry registry("tiny", base_.variant);
  DF_EXPECT_OK(registry.Add(Named("math")));
  EXPECT_EQ(registry.Add(Named("math")).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(registry.Add(Named("tiny")).code(), StatusCode::kFailedPrecondition);
  for (const std::string bad : {"", "a b", "a\nb", "a,b", "a\"b", "a'b", "a\\b", "a=b", "..", "../a", "a/../b", "./a",
                                "/a", "a/", "a//b", "\x80", "\x7F"}) {
    EXPECT_EQ(registry.Add(Named(bad)).code(), StatusCode::kInvalidArgument) << bad;
  }
  EXPECT_EQ(registry.Add(Named(std::string(257, 'a'))).code(), StatusCode::kInvalidArgument);
  DF_EXPECT_OK(registry.Add(Named(std::string(256, 'a'))));
  DF_EXPECT_OK(registry.Add(Named("a..b")));
  DF_EXPECT_OK(registry.Add(Named("\xC3\xA9t\xC3\xA9")));
}

TEST_F(RegistryTest, CountsSharedWeightsOnce) {
  Registry registry("tiny", base_.variant);
  const auto delta = ValueOrDie(Load("delta"));
  auto alias = std::make_shared<Variant>(*delta);
  alias->name = "alias";
  DF_EXPECT_OK(registry.Add(delta));
  DF_EXPECT_OK(registry.Add(alias));
  EXPECT_EQ(registry.ResidentWeightBytes(), base_.weights->bytes + delta->resident_bytes);
}

TEST_F(RegistryTest, AVariantTakesFromTheBaseWhatItLacks) {
  const auto delta = ValueOrDie(Load("delta"));
  EXPECT_EQ(delta->text->tokenizer, base_.variant->text->tokenizer);
  EXPECT_EQ(delta->text->chat_template, base_.variant->text->chat_template);
  EXPECT_EQ(delta->eos_ids, (std::vector<int32_t>{testing::kTinyEos}));
  EXPECT_EQ(delta->max_model_len, testing::kTinyPositions);
  EXPECT_EQ(delta->root, Path("delta"));
  EXPECT_GT(delta->stored_bytes, 0u);
  EXPECT_LT(delta->stored_bytes, base_.variant->stored_bytes);
}

TEST_F(RegistryTest, AVariantKeepsItsOwnTemplateAndGenerationDefaults) {
  const std::string own = CopyOf("delta", "own");
  testing::WriteText(own + "/chat_template.jinja", "mine");
  testing::WriteText(own + "/generation_config.json", R"({"eos_token_id": [3, 5], "temperature": 0.5})");
  const auto variant = ValueOrDie(Load("own"));
  EXPECT_NE(variant->text->chat_template, base_.variant->text->chat_template);
  EXPECT_EQ(variant->text->tokenizer, base_.variant->text->tokenizer);
  EXPECT_EQ(variant->defaults.temperature, 0.5);
  for (const int32_t id : {3, 5}) EXPECT_TRUE(std::ranges::binary_search(variant->eos_ids, id)) << id;
}

TEST_F(RegistryTest, RefusesADeltaOfAnotherBaseNamingBothFingerprints) {
  const Status refused = StatusOf(Load("foreign"));
  EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(refused.message().find(base_.weights->fingerprint), std::string::npos) << refused.message();
  EXPECT_NE(refused.message().find("foreign"), std::string::npos);
}

TEST_F(RegistryTest, RefusesADeltaWithAFlippedBit) {
  const std::string path = CopyOf("delta", "flipped") + "/delta_model.safetensors";
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(0, std::ios::end);
  const auto last = static_cast<std::streamoff>(file.tellg()) - 1;
  file.seekg(last);
  const char byte = static_cast<char>(file.get());
  file.seekp(last);
  file.put(static_cast<char>(byte ^ 1));
  file.close();
  const Status refused = StatusOf(Load("flipped"));
  EXPECT_EQ(refused.code(), StatusCode::kCorrupt);
  EXPECT_NE(refused.message().find("digest"), std::string::npos) << refused.message();
}

TEST_F(RegistryTest, SaysWhatToDoWithAFullModel) {
  const Status refused = StatusOf(Load("other"));
  EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(refused.message().find("compress"), std::string::npos);
}

TEST_F(RegistryTest, RefusesWhatIsNothing) {
  EXPECT_FALSE(Load("absent").ok());
  std::filesystem::create_directories(Path("empty"));
  EXPECT_FALSE(Load("empty").ok());
  EXPECT_FALSE(LoadBaseVariant(*context_, "x", Path("empty")).ok());
}

}  // namespace
}  // namespace df
