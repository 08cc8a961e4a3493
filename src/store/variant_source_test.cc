#include "store/variant_source.h"

#include <new>
#include <set>

#include "store/store_fixture.h"
#include "testing/refusal.h"

namespace df {
namespace {

using testing::ExpectRefusal;
using testing::StatusOf;
using testing::ValueOrDie;

class VariantSourceTest : public StoreFixture {
 protected:
  static Result<std::shared_ptr<const VariantSource>> Open(const std::string& name) {
    return OpenVariant(*base_.weights, Path(name));
  }
  static std::shared_ptr<Variant> Describe(const std::string& name) {
    return ValueOrDie(DescribeVariant(*base_.variant, *ValueOrDie(Open(name)), name));
  }
  static Status PackStatus(const VariantSource& source) {
    return StatusOf(PackVariant(*context_, *base_.weights, source));
  }
};

TEST_F(VariantSourceTest, TellsBaseDeltaAndAdapterApartByTheirFiles) {
  EXPECT_EQ(base_.variant->KindName(), "base");
  EXPECT_EQ(ValueOrDie(Open("delta"))->info.kind, VariantKind::kDelta);
  EXPECT_EQ(ValueOrDie(Open("adapter"))->info.kind, VariantKind::kLora);
}

TEST_F(VariantSourceTest, KnowsTheBytesOfItsWeightsBeforeTheyArePacked) {
  for (const std::string name : {"delta", "adapter"}) {
    const auto source = ValueOrDie(Open(name));
    const auto weights = ValueOrDie(PackVariant(*context_, *base_.weights, *source));
    EXPECT_GT(source->info.resident_bytes, 0u);
    EXPECT_EQ(source->info.resident_bytes, weights->bytes) << name;
    EXPECT_EQ(source->info.digest, weights->digest) << name;
  }
}

TEST_F(VariantSourceTest, AVariantTakesFromTheBaseWhatItLacks) {
  const auto delta = Describe("delta");
  EXPECT_EQ(delta->text->tokenizer, base_.variant->text->tokenizer);
  EXPECT_EQ(delta->text->chat_template, base_.variant->text->chat_template);
  EXPECT_EQ(delta->eos_ids, (std::vector<int32_t>{testing::kTinyEos}));
  EXPECT_EQ(delta->max_model_len, testing::kTinyPositions);
  EXPECT_GT(delta->stored_bytes, 0u);
  EXPECT_LT(delta->stored_bytes, base_.variant->stored_bytes);
}

TEST_F(VariantSourceTest, AVariantKeepsItsOwnTemplateAndGenerationDefaults) {
  const std::string own = CopyOf("delta", "own");
  testing::WriteText(own + "/chat_template.jinja", "mine");
  testing::WriteText(own + "/generation_config.json", R"({"eos_token_id": [3, 5], "temperature": 0.5})");
  const auto variant = Describe("own");
  EXPECT_NE(variant->text->chat_template, base_.variant->text->chat_template);
  EXPECT_EQ(variant->text->tokenizer, base_.variant->text->tokenizer);
  EXPECT_EQ(variant->defaults.temperature, 0.5);
  for (const int32_t id : {3, 5}) EXPECT_TRUE(std::ranges::binary_search(variant->eos_ids, id)) << id;
}

TEST_F(VariantSourceTest, AnotherTemplateIsAnotherGeneration) {
  for (const std::string name : {"delta", "adapter"}) {
    std::set<std::string> digests = {ValueOrDie(Open(name))->info.digest};
    const std::string with_text = CopyOf(name, "with-text");
    for (const std::string text : {"mine", "yours"}) {
      testing::WriteText(with_text + "/chat_template.jinja", text);
      const auto source = ValueOrDie(Open("with-text"));
      digests.insert(source->info.digest);
      DF_EXPECT_OK(PackStatus(*source));
    }
    EXPECT_EQ(digests.size(), 3u) << name;
  }
}

TEST_F(VariantSourceTest, RefusesADeltaOfAnotherBaseNamingBothFingerprints) {
  ExpectRefusal(Open("foreign"), StatusCode::kFailedPrecondition, {base_.weights->fingerprint, "foreign"});
}

TEST_F(VariantSourceTest, RefusesAFlippedBitAndANanAmongTheScales) {
  FlipLastBit(CopyOf("delta", "flipped") + "/delta_model.safetensors");
  ExpectRefusal(Open("flipped"), StatusCode::kCorrupt, {"digest"});
  const std::string scale = "model.layers.1.mlp.up_proj.weight.scale_row";
  PutNanInto(CopyOf("delta", "nan") + "/delta_model.safetensors", scale);
  ExpectRefusal(Open("nan"), StatusCode::kCorrupt, {scale, "finite"});
}

TEST_F(VariantSourceTest, RefusesAnAdapterThatChangesNothingOfTheBase) {
  const std::string path = CopyOf("adapter", "misfit") + "/adapter_config.json";
  testing::WriteText(path, R"({"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["c_attn"],
                               "bias": "none", "task_type": "CAUSAL_LM"})");
  EXPECT_FALSE(Open("misfit").ok());
}

TEST_F(VariantSourceTest, SaysWhatToDoWithAFullModel) {
  ExpectRefusal(Open("other"), StatusCode::kFailedPrecondition, {"compress"});
}

TEST_F(VariantSourceTest, RefusesWhatIsNothing) {
  EXPECT_FALSE(Open("absent").ok());
  std::filesystem::create_directories(Path("empty"));
  EXPECT_FALSE(Open("empty").ok());
  EXPECT_FALSE(LoadBaseVariant(*context_, "x", Path("empty")).ok());
}

TEST_F(VariantSourceTest, IsUntouchedByAReplacementOfItsDirectory) {
  for (const std::string name : {"delta", "adapter"}) {
    const std::string at = CopyOf(name, "replaced");
    const auto source = ValueOrDie(Open("replaced"));
    std::filesystem::remove_all(at);
    const auto weights = ValueOrDie(PackVariant(*context_, *base_.weights, *source));
    EXPECT_EQ(weights->digest, source->info.digest);
  }
}

TEST_F(VariantSourceTest, FindsAChangeInPlaceWhenItIsPacked) {
  for (const auto& [name, file] :
       {std::pair{"delta", "/delta_model.safetensors"}, std::pair{"adapter", "/adapter_model.safetensors"}}) {
    const std::string path = CopyOf(name, "changed") + file;
    const auto source = ValueOrDie(Open("changed"));
    FlipLastBit(path);
    ExpectRefusal(PackStatus(*source), StatusCode::kUnavailable, {kGenerationGone});
    FlipLastBit(path);
    DF_EXPECT_OK(PackStatus(*source));
    std::filesystem::resize_file(path, 4096);
    ExpectRefusal(PackStatus(*source), StatusCode::kUnavailable, {kGenerationGone});
  }
}

TEST_F(VariantSourceTest, ARefusedAllocationIsAFailureOfThatLoad) {
  const auto source = ValueOrDie(Open("delta"));
  size_t n_calls = 0;
  ASSERT_TRUE(PackVariant(*context_, *base_.weights, *source, {.progress = [&](size_t) {
                ++n_calls;
                return Status::Ok();
              }}).ok());
  for (size_t nth = 1; nth <= n_calls; ++nth) {
    size_t call = 0;
    const auto refused = PackVariant(*context_, *base_.weights, *source, {.progress = [&](size_t) -> Status {
      if (++call == nth) throw std::bad_alloc();
      return Status::Ok();
    }});
    ExpectRefusal(refused, StatusCode::kResourceExhausted, {"memory"});
  }
}

}  // namespace
}  // namespace df
