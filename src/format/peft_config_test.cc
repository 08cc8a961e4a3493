#include "format/peft_config.h"

#include <gtest/gtest.h>

#include <ctime>

#include "base/json.h"
#include "testing/refusal.h"
#include "testing/temporary_directory.h"

namespace df {
namespace {

using testing::ExpectRefusal;
using testing::ValueOrDie;

Result<PeftConfig> Parse(std::string_view changes) {
  Json config = ValueOrDie(ParseJson(R"({"peft_type":"LORA","r":4,"lora_alpha":8,"target_modules":["q_proj"]})"));
  config.merge_patch(ValueOrDie(ParseJson(changes)));
  return ParsePeftConfig(config);
}

TEST(PeftConfig, TargetsAsPeftDoes) {
  const std::string q0 = "model.layers.0.self_attn.q_proj", q1 = "model.layers.1.self_attn.q_proj";
  EXPECT_TRUE(ValueOrDie(Parse("{}")).Targets(q0));
  EXPECT_FALSE(ValueOrDie(Parse("{}")).Targets("model.layers.0.self_attn.xq_proj"));
  EXPECT_TRUE(ValueOrDie(Parse(R"({"target_modules":["self_attn.q_proj"]})")).Targets(q0));
  EXPECT_FALSE(ValueOrDie(Parse(R"({"target_modules":"q_proj"})")).Targets(q0));  // a pattern matches the whole path
  EXPECT_TRUE(ValueOrDie(Parse(R"({"target_modules":".*\\.(q|v)_proj"})")).Targets(q0));
  const PeftConfig linear = ValueOrDie(Parse(R"({"target_modules":"all-linear"})"));
  EXPECT_TRUE(linear.Targets(q0));
  EXPECT_FALSE(linear.Targets("lm_head"));
  const PeftConfig layer = ValueOrDie(Parse(R"({"layers_to_transform":[1],"layers_pattern":"layers"})"));
  EXPECT_TRUE(layer.Targets(q1));
  EXPECT_FALSE(layer.Targets(q0));
  EXPECT_TRUE(ValueOrDie(Parse(R"({"layers_to_transform":1})")).Targets(q1));
  EXPECT_FALSE(ValueOrDie(Parse(R"({"layers_to_transform":1,"layers_pattern":"blocks"})")).Targets(q1));
  // A name that is the whole path is not narrowed by layer.
  EXPECT_TRUE(ValueOrDie(Parse(R"({"layers_to_transform":[1],"target_modules":[")" + q0 + "\"]}")).Targets(q0));
  EXPECT_FALSE(ValueOrDie(Parse(R"({"exclude_modules":["q_proj"]})")).Targets(q0));
  EXPECT_FALSE(ValueOrDie(Parse(R"({"exclude_modules":".*layers\\.0.*"})")).Targets(q0));
}

TEST(PeftConfig, RefusesFieldsOfOtherMethodsByName) {
  for (const char* field : {"use_qalora", "fan_in_fan_out", "a_field_of_tomorrow"}) {
    ExpectRefusal(Parse("{\"" + std::string(field) + "\":true}"), StatusCode::kUnsupported, {field});
  }
  for (const char* field : {"target_parameters", "layer_replication", "alora_invocation_tokens", "arrow_config",
                            "use_bdlora", "kasa_config", "monteclora_config", "velora_config", "nested_config"}) {
    ExpectRefusal(Parse("{\"" + std::string(field) + "\":[1]}"), StatusCode::kUnsupported, {field});
  }
  for (const char* init : {"\"pissa\"", "\"olora\"", "\"loftq\"", "\"corda\"", "\"lora_ga\"", "7"}) {
    ExpectRefusal(Parse(R"({"init_lora_weights":)" + std::string(init) + "}"), StatusCode::kUnsupported,
                  {"init_lora_weights"});
  }
  ExpectRefusal(Parse(R"({"bias":"some"})"), StatusCode::kUnsupported, {"bias"});
  ExpectRefusal(Parse(R"({"use_dora":true,"lora_bias":true})"), StatusCode::kUnsupported, {"lora_bias"});
  ExpectRefusal(Parse(R"({"peft_type":"ADALORA"})"), StatusCode::kUnsupported, {"peft_type", "ADALORA"});
}

TEST(PeftConfig, PassesOverLabelsInitialisationAndWhatIsNotUsed) {
  DF_EXPECT_OK(Parse(R"({"init_lora_weights":"gaussian","modules_to_save":[],"loftq_config":{},"fan_in_fan_out":false,
                "megatron_core":"megatron.core","megatron_config":{"a":1},"eva_config":{"rho":2},"corda_config":{"a":1},
                "qalora_group_size":16,"peft_version":"0.21.2","lora_dropout":0.05,"runtime_config":{"a":true},
                "a_field_of_tomorrow":null,"another":false,"a_third":{},"a_fourth":""})"));
}

TEST(PeftConfig, SavesWhatEndsSoAndAllThatIsInIt) {
  const PeftConfig config = ValueOrDie(Parse(R"({"modules_to_save":["norm","mlp"]})"));
  for (const char* path : {"model.norm", "model.layers.0.input_layernorm", "model.layers.3.mlp.up_proj"}) {
    EXPECT_TRUE(config.Saves(path)) << path;
  }
  for (const char* path : {"model.layers.0.self_attn.q_proj", "lm_head", "model.norms", "mlp2.up_proj"}) {
    EXPECT_FALSE(config.Saves(path)) << path;
  }
}

TEST(PeftConfig, ReadsTokensForTheEmbeddingOrByModule) {
  const PeftConfig list = ValueOrDie(Parse(R"({"trainable_token_indices":[7,3]})"));
  ASSERT_NE(list.TokensOrNull("model.embed_tokens"), nullptr);
  EXPECT_EQ(list.TokensOrNull("model.embed_tokens")->index, (std::vector<int32_t>{7, 3}));
  EXPECT_EQ(list.TokensOrNull("lm_head"), nullptr);
  EXPECT_EQ(list.TokensOrNull("model.xembed_tokens"), nullptr);
  const PeftConfig object = ValueOrDie(Parse(R"({"trainable_token_indices":{"lm_head":[1]}})"));
  EXPECT_EQ(object.TokensOrNull("model.embed_tokens"), nullptr);
  ASSERT_NE(object.TokensOrNull("lm_head"), nullptr);
  for (const char* tokens : {"[-1]", "[1.5]", "[2147483648]", "[18446744073709551615]", "[\"1\"]", "7", "{\"a\":1}"}) {
    ExpectRefusal(Parse(R"({"trainable_token_indices":)" + std::string(tokens) + "}"), StatusCode::kInvalidArgument,
                  {"trainable_token_indices"});
  }
  ExpectRefusal(Parse(R"({"trainable_token_indices":[4,9,4]})"), StatusCode::kInvalidArgument,
                {"trainable_token_indices", "4", "twice"});
}

TEST(PeftConfig, RefusesValuesOfTheWrongTypeOrRange) {
  for (const char* changes : {R"({"r":0})",
                              R"({"r":-1})",
                              R"({"r":4.5})",
                              R"({"r":null})",
                              R"({"r":65537})",
                              R"({"lora_alpha":"8"})",
                              R"({"lora_alpha":null})",
                              R"({"target_modules":null})",
                              R"({"target_modules":7})",
                              R"({"target_modules":[7]})",
                              R"({"rank_pattern":[]})",
                              R"({"rank_pattern":{"q":0}})",
                              R"({"rank_pattern":{"q":1.5}})",
                              R"({"rank_pattern":{"q":1e300}})",
                              R"({"alpha_pattern":{"q":"1"}})",
                              R"({"use_rslora":1})",
                              R"({"use_dora":1})",
                              R"({"lora_bias":"yes"})",
                              R"({"modules_to_save":"lm_head"})",
                              R"({"modules_to_save":[""]})",
                              R"({"modules_to_save":[1]})",
                              R"({"bias":1})",
                              R"({"ensure_weight_tying":2})",
                              R"({"layers_to_transform":[-1]})",
                              R"({"layers_to_transform":["1"]})",
                              R"({"layers_pattern":[7]})"}) {
    EXPECT_EQ(testing::StatusOf(Parse(changes)).code(), StatusCode::kInvalidArgument) << changes;
  }
}

TEST(PeftConfig, RefusesPatternsThatNeedBacktrackingOrAreTooLarge) {
  for (const char* pattern : {"(?=a)b", "(a)\\\\1", "(", "a)|(b", "(x{1000}){1000}"}) {
    ExpectRefusal(Parse(R"({"rank_pattern":{")" + std::string(pattern) + "\":2}}"), StatusCode::kUnsupported,
                  {"rank_pattern"});
  }
  ExpectRefusal(Parse(R"({"target_modules":")" + std::string(2000, 'a') + "\"}"), StatusCode::kInvalidArgument,
                {"target_modules", "2000"});
  const auto many = [](int n, const std::string& end) {
    std::string json = R"({"alpha_pattern":{)";
    for (int i = 0; i < n; ++i) json += (i ? ",\"" : "\"") + std::to_string(i) + end + "\":1";
    return Parse(json + "}}");
  };
  ExpectRefusal(many(300, "+"), StatusCode::kInvalidArgument, {"alpha_pattern", "256"});
  ExpectRefusal(many(5000, ""), StatusCode::kInvalidArgument, {"alpha_pattern", "4096"});
  ExpectRefusal(Parse(R"X({"layers_pattern":"(a|b)"})X"), StatusCode::kUnsupported, {"layers_pattern"});
}

// As EVA and extracted adapters have it: one key a module.
TEST(PeftConfig, TakesARankForEveryModuleOfADeepModel) {
  std::string json = R"({"rank_pattern":{)";
  for (int layer = 0; layer < 80; ++layer) {
    for (int part = 0; part < 7; ++part) {
      const int rank = 1 + layer * 7 + part;
      json += (rank > 1 ? ",\"" : "\"") + std::string("model.layers.") + std::to_string(layer) + ".part_" +
              std::to_string(part) + "\":" + std::to_string(rank);
    }
  }
  const PeftConfig config = ValueOrDie(Parse(json + "}}"));
  EXPECT_EQ(config.RankOf("model.layers.0.part_0"), 1u);
  EXPECT_EQ(config.RankOf("model.layers.79.part_6"), 560u);
  EXPECT_EQ(config.RankOf("model.layers.7.part_3"), 53u) << "not that of layer 77";
}

TEST(PeftConfig, MatchesAPlainKeyAsTheExpressionThatItIs) {
  const PeftConfig config = ValueOrDie(Parse(R"({"r":9,"rank_pattern":{"attn.q_proj":2,"v":3}})"));
  EXPECT_EQ(config.RankOf("model.attn.q_proj"), 2u);
  EXPECT_EQ(config.RankOf("attn.q_proj"), 2u);
  EXPECT_EQ(config.RankOf("model.attn_q_proj"), 2u) << "a dot is any character";
  EXPECT_EQ(config.RankOf("model.self_attn.q_proj"), 9u);
  EXPECT_EQ(config.RankOf("q_proj"), 9u);
  EXPECT_EQ(config.RankOf("a.v"), 3u);
  EXPECT_EQ(config.RankOf("av"), 9u);
}

TEST(PeftConfig, MatchesHostilePatternsInLinearTime) {
  const PeftConfig config = ValueOrDie(Parse(R"({"rank_pattern":{"(a+)+$":2,"(a|a)*b":3,"(.*)*x":5}})"));
  const std::clock_t start = std::clock();
  EXPECT_EQ(config.RankOf(std::string(20'000, 'a')), 2U);
  EXPECT_EQ(config.RankOf(std::string(20'000, 'a') + "c"), 4U);
  EXPECT_LT(std::clock() - start, 5 * CLOCKS_PER_SEC);
}

}  // namespace
}  // namespace df
