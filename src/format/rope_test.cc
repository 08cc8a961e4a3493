#include <gtest/gtest.h>

#include <cmath>

#include "base/json.h"
#include "format/model_config.h"
#include "testing/refusal.h"

namespace df {
namespace {

using testing::ExpectRefusal;
using testing::ValueOrDie;

Result<ModelConfig> WithRope(std::string_view rope) {
  Json config = ValueOrDie(ParseJson(R"({"model_type":"llama","vocab_size":16,"hidden_size":32,"intermediate_size":12,
      "num_hidden_layers":1,"num_attention_heads":2,"max_position_embeddings":64})"));
  config.merge_patch(ValueOrDie(ParseJson(rope)));
  return ParseModelConfig(config);
}

TEST(Rope, FrequenciesEqualTheReferencesToRounding) {
  const Json golden = ValueOrDie(ReadJsonFile(DELTAFOLD_SOURCE_DIR "/tests/golden/rope/frequencies.json"));
  for (const Json& c : golden.at("cases")) {
    SCOPED_TRACE(c.at("name").get<std::string>());
    const ModelConfig config = ValueOrDie(ParseModelConfig(c.at("config")));
    const RopeFrequencies ours = ComputeRopeFrequencies(config.rope, config.head_dim);
    const auto reference = c.at("inv_freq").get<std::vector<float>>();
    ASSERT_EQ(ours.inv_freq.size(), reference.size());
    for (size_t i = 0; i < reference.size(); ++i) {
      // One unit in the last place for the power of either library, and half a unit for each of the two operations
      // after it in which they could round differently.
      EXPECT_NEAR(ours.inv_freq[i], reference[i], 3 * 0x1p-23F * reference[i]) << "pair " << i;
    }
    EXPECT_EQ(ours.magnitude, c.at("magnitude").get<float>());
  }
}

TEST(Rope, YarnOfTheReferenceModelScalesCosAndSin) {
  const ModelConfig config = ValueOrDie(LoadModelConfig(DELTAFOLD_SOURCE_DIR "/tests/golden/models/llama-yarn-rope"));
  EXPECT_FLOAT_EQ(ComputeRopeFrequencies(config.rope, config.head_dim).magnitude, 0.1F * std::log(4.0F) + 1.0F);
}

TEST(Rope, ReadsTheOldKeyType) {
  const ModelConfig config = ValueOrDie(WithRope(R"({"rope_scaling":{"type":"linear","factor":4}})"));
  EXPECT_EQ(config.rope.kind, RopeConfig::Kind::kLinear);
  EXPECT_EQ(config.rope.factor, 4.0);
  EXPECT_EQ(config.rope.theta, 10000.0);
}

TEST(Rope, ServesDynamicOnlyWithinItsOriginalLength) {
  EXPECT_EQ(ValueOrDie(WithRope(R"({"rope_scaling":{"type":"dynamic","factor":4}})")).max_positions, 64U);
  EXPECT_EQ(
      ValueOrDie(WithRope(R"({"rope_scaling":{"type":"dynamic","factor":4,"original_max_position_embeddings":16}})"))
          .max_positions,
      16U);
}

TEST(Rope, TakesTheOriginalLengthFromOutsideTheSettingsToo) {
  EXPECT_EQ(
      ValueOrDie(WithRope(R"({"original_max_position_embeddings":32,"rope_scaling":{"rope_type":"yarn","factor":2}})"))
          .rope.original_max_positions,
      32.0);
  EXPECT_EQ(ValueOrDie(WithRope(R"({"rope_scaling":{"rope_type":"yarn","factor":2}})")).rope.original_max_positions,
            64.0);
}

struct RopeCase {
  const char* rope;
  StatusCode code;
  const char* word;
};

TEST(Rope, RefusesWhatItDoesNotComputeByName) {
  for (
      const RopeCase& c : std::vector<RopeCase>{
          {R"({"rope_scaling":{"rope_type":"longrope","factor":4}})", StatusCode::kUnsupported, "longrope"},
          {R"({"rope_scaling":{"type":"su"}})", StatusCode::kUnsupported, "\"su\""},
          {R"({"rope_scaling":{"type":"mrope","mrope_section":[1,2]}})", StatusCode::kUnsupported, "mrope_section"},
          {R"({"rope_parameters":{"rope_type":"proportional"}})", StatusCode::kUnsupported, "proportional"},
          {R"({"rope_parameters":{"full_attention":{"rope_type":"default"},"sliding_attention":{"rope_type":"default"}}})",
           StatusCode::kUnsupported, "full_attention"},
          {R"({"rope_parameters":{"rope_type":"default","partial_rotary_factor":0.5}})", StatusCode::kUnsupported,
           "partial_rotary_factor"},
      }) {
    SCOPED_TRACE(c.rope);
    ExpectRefusal(WithRope(c.rope), c.code, {c.word});
  }
}

TEST(Rope, RefusesSettingsThatAreMissingContradictoryOrNotFinite) {
  for (const char* rope :
       {R"({"rope_theta":0})",
        R"({"rope_theta":-5})",
        R"({"rope_theta":"1e4"})",
        R"({"rope_theta":1})",
        R"({"rope_theta":1e300})",
        R"({"rope_scaling":"linear"})",
        R"({"rope_scaling":{"type":7}})",
        R"({"rope_scaling":{"type":"linear"}})",
        R"({"rope_scaling":{"type":"linear","factor":0}})",
        R"({"rope_scaling":{"type":"linear","factor":-2}})",
        R"({"rope_scaling":{"type":"linear","factor":1e-300}})",
        R"({"rope_scaling":{"type":"linear","rope_type":"yarn","factor":2}})",
        R"({"rope_theta":10000,"rope_parameters":{"rope_theta":20000}})",
        R"({"rope_scaling":{"type":"linear","factor":2},"rope_parameters":{"rope_type":"linear","factor":4}})",
        R"({"rope_scaling":{"rope_type":"llama3","factor":8,"low_freq_factor":1}})",
        R"({"rope_scaling":{"rope_type":"llama3","factor":8,"low_freq_factor":4,"high_freq_factor":4}})",
        R"({"rope_scaling":{"rope_type":"llama3","factor":8,"low_freq_factor":5,"high_freq_factor":4}})",
        R"({"rope_scaling":{"rope_type":"yarn","factor":4,"attention_factor":0}})",
        R"({"rope_scaling":{"rope_type":"yarn","factor":4,"beta_fast":0}})",
        R"({"rope_scaling":{"rope_type":"yarn","factor":4,"original_max_position_embeddings":0}})",
        R"({"rope_scaling":{"rope_type":"yarn","factor":4,"mscale":"x"}})",
        R"({"rope_scaling":{"rope_type":"yarn","factor":4,"truncate":1}})"}) {
    EXPECT_EQ(testing::StatusOf(WithRope(rope)).code(), StatusCode::kInvalidArgument) << rope;
  }
}

}  // namespace
}  // namespace df
