#include "format/model_config.h"

#include <gtest/gtest.h>

#include "base/json.h"
#include "testing/refusal.h"
#include "testing/temporary_directory.h"

namespace df {
namespace {

using testing::ExpectRefusal;
using testing::ValueOrDie;

constexpr char kTests[] = DELTAFOLD_SOURCE_DIR "/tests/";

// A small sound config; `changes` are merged into it, null removes a key.
Json Config(const std::string& model_type, std::string_view changes = "{}") {
  Json config = ValueOrDie(ParseJson(R"({"vocab_size":16,"hidden_size":8,"intermediate_size":12,
      "num_hidden_layers":4,"num_attention_heads":2,"num_key_value_heads":1,"max_position_embeddings":64,
      "rms_norm_eps":1e-5,"rope_theta":10000.0})"));
  config["model_type"] = model_type;
  config.merge_patch(ValueOrDie(ParseJson(changes)));
  return config;
}

Result<ModelConfig> Parse(const std::string& model_type, std::string_view changes = "{}") {
  return ParseModelConfig(Config(model_type, changes));
}

TEST(ModelConfig, ReadsEveryReferenceModel) {
  for (const char* name :
       {"llama-bias", "llama-eos-list", "llama-fp16", "llama-fp16-sharded", "llama-fp32", "llama-linear-rope",
        "llama-odd-sizes", "llama-yarn-rope", "llama2-mha-untied", "llama3-gqa", "llama3-gqa-v5config",
        "mistral-nowindow", "mistral-window16", "qwen2-bias-tied", "qwen3-qknorm-tied"}) {
    DF_EXPECT_OK(LoadModelConfig(std::string(kTests) + "golden/models/" + name));
  }
}

TEST(ModelConfig, ReadsBothDialectsAlike) {
  const ModelConfig old_form = ValueOrDie(LoadModelConfig(std::string(kTests) + "golden/models/llama3-gqa"));
  const ModelConfig new_form = ValueOrDie(LoadModelConfig(std::string(kTests) + "golden/models/llama3-gqa-v5config"));
  EXPECT_TRUE(old_form.rope == new_form.rope);
  EXPECT_EQ(old_form.rope.kind, RopeConfig::Kind::kLlama3);
  EXPECT_EQ(old_form.rope.theta, 500000.0);
  EXPECT_EQ(old_form.dtype, DType::kBf16);
  EXPECT_EQ(new_form.dtype, DType::kBf16);
  DF_EXPECT_OK(CheckVariantConfig(old_form, new_form));
}

TEST(ModelConfig, GivesBiasesNormsAndTyingOfEachArchitecture) {
  const ModelConfig llama = ValueOrDie(Parse("llama", R"({"attention_bias":true,"mlp_bias":true})"));
  EXPECT_TRUE(llama.qkv_bias && llama.o_bias && llama.mlp_bias && !llama.qk_norm && !llama.tied_head);
  const ModelConfig mistral = ValueOrDie(Parse("mistral"));
  EXPECT_FALSE(mistral.qkv_bias || mistral.o_bias || mistral.mlp_bias || mistral.qk_norm);
  const ModelConfig qwen2 = ValueOrDie(Parse("qwen2", R"({"tie_word_embeddings":true})"));
  EXPECT_TRUE(qwen2.qkv_bias && !qwen2.o_bias && !qwen2.mlp_bias && !qwen2.qk_norm && qwen2.tied_head);
  const ModelConfig qwen3 = ValueOrDie(Parse("qwen3", R"({"attention_bias":true})"));
  EXPECT_TRUE(qwen3.qkv_bias && qwen3.o_bias && !qwen3.mlp_bias && qwen3.qk_norm);
}

TEST(ModelConfig, DerivesHeadSizesAsTheReferenceDoes) {
  EXPECT_EQ(ValueOrDie(Parse("llama")).head_dim, 4U);
  EXPECT_EQ(ValueOrDie(Parse("llama", R"({"head_dim":6})")).head_dim, 6U);
  EXPECT_EQ(ValueOrDie(Parse("qwen3")).head_dim, 128U);
  EXPECT_EQ(ValueOrDie(Parse("llama", R"({"num_key_value_heads":null})")).n_kv_heads, 2U);
  // Mistral's class has 8 key/value heads when the key is absent: no divisor of 2.
  ExpectRefusal(Parse("mistral", R"({"num_key_value_heads":null})"), StatusCode::kInvalidArgument, {"2", "8"});
}

using Windows = std::vector<size_t>;

TEST(ModelConfig, GivesMistralOneWindowForAllLayers) {
  EXPECT_EQ(ValueOrDie(Parse("mistral", R"({"sliding_window":16})")).window, Windows(4, 16));
  EXPECT_EQ(ValueOrDie(Parse("mistral")).window, Windows(4, 4096));
  Json off = Config("mistral");
  off["sliding_window"] = nullptr;
  EXPECT_EQ(ValueOrDie(ParseModelConfig(off)).window, Windows(4, 0));
}

TEST(ModelConfig, GivesQwenAWindowOnlyWhereItIsUsed) {
  EXPECT_EQ(ValueOrDie(Parse("qwen2", R"({"sliding_window":16})")).window, Windows(4, 0));
  EXPECT_EQ(
      ValueOrDie(Parse("qwen2", R"({"sliding_window":16,"use_sliding_window":true,"max_window_layers":3})")).window,
      (Windows{0, 0, 0, 16}));
  EXPECT_EQ(
      ValueOrDie(Parse("qwen3", R"({"sliding_window":16,"use_sliding_window":true,"max_window_layers":0})")).window,
      Windows(4, 16));
  EXPECT_EQ(ValueOrDie(Parse("qwen3", R"({"sliding_window":16,"use_sliding_window":true,"layer_types":
      ["sliding_attention","full_attention","sliding_attention","full_attention"]})"))
                .window,
            (Windows{16, 0, 16, 0}));
}

TEST(ModelConfig, RefusesLayerTypesThatDoNotFit) {
  ExpectRefusal(Parse("qwen2", R"({"layer_types":["full_attention"]})"), StatusCode::kInvalidArgument,
                {"layer_types", "4", "1"});
  ExpectRefusal(
      Parse("qwen2", R"({"layer_types":["full_attention","full_attention","full_attention","sliding_attention"]})"),
      StatusCode::kInvalidArgument, {"layer 3"});
  ExpectRefusal(
      Parse("qwen2", R"({"layer_types":["full_attention","full_attention","full_attention","linear_attention"]})"),
      StatusCode::kUnsupported, {"linear_attention"});
  ExpectRefusal(
      Parse("llama", R"({"layer_types":["full_attention","full_attention","full_attention","sliding_attention"]})"),
      StatusCode::kUnsupported, {"layer_types"});
}

struct ConfigCase {
  const char* changes;
  StatusCode code;
  const char* word;
};

TEST(ModelConfig, RefusesSizesOutOfRangeNamingTheField) {
  for (const ConfigCase& c : std::vector<ConfigCase>{
           {R"({"num_hidden_layers":1000000000})", StatusCode::kInvalidArgument, "num_hidden_layers"},
           {R"({"num_hidden_layers":0})", StatusCode::kInvalidArgument, "num_hidden_layers"},
           {R"({"num_hidden_layers":-1})", StatusCode::kInvalidArgument, "-1"},
           {R"({"hidden_size":8.5})", StatusCode::kInvalidArgument, "8.5"},
           {R"({"hidden_size":"8"})", StatusCode::kInvalidArgument, "hidden_size"},
           {R"({"hidden_size":null})", StatusCode::kInvalidArgument, "hidden_size"},
           {R"({"hidden_size":18446744073709551615})", StatusCode::kInvalidArgument, "hidden_size"},
           {R"({"vocab_size":0})", StatusCode::kInvalidArgument, "vocab_size"},
           {R"({"vocab_size":4000000000})", StatusCode::kInvalidArgument, "vocab_size"},
           {R"({"intermediate_size":0})", StatusCode::kInvalidArgument, "intermediate_size"},
           {R"({"num_attention_heads":0})", StatusCode::kInvalidArgument, "num_attention_heads"},
           {R"({"num_attention_heads":3,"num_key_value_heads":3})", StatusCode::kInvalidArgument, "not a multiple"},
           {R"({"num_attention_heads":4,"num_key_value_heads":3})", StatusCode::kInvalidArgument,
            "num_key_value_heads"},
           {R"({"num_key_value_heads":0})", StatusCode::kInvalidArgument, "num_key_value_heads"},
           {R"({"num_key_value_heads":4})", StatusCode::kInvalidArgument, "not a multiple"},
           {R"({"head_dim":7})", StatusCode::kInvalidArgument, "7 is odd"},
           {R"({"head_dim":0})", StatusCode::kInvalidArgument, "head_dim"},
           {R"({"num_attention_heads":8,"num_key_value_heads":8})", StatusCode::kInvalidArgument, "1 is odd"},
           {R"({"max_position_embeddings":0})", StatusCode::kInvalidArgument, "max_position_embeddings"},
           {R"({"rms_norm_eps":0})", StatusCode::kInvalidArgument, "rms_norm_eps"},
           {R"({"rms_norm_eps":-1e-5})", StatusCode::kInvalidArgument, "rms_norm_eps"},
           {R"({"tie_word_embeddings":1})", StatusCode::kInvalidArgument, "tie_word_embeddings"},
           {R"({"eos_token_id":-1})", StatusCode::kInvalidArgument, "eos_token_id"},
           {R"({"eos_token_id":[1,2.5]})", StatusCode::kInvalidArgument, "eos_token_id"},
           {R"({"bos_token_id":4294967296})", StatusCode::kInvalidArgument, "bos_token_id"},
           {R"({"model_type":7})", StatusCode::kInvalidArgument, "model_type"},
           {R"({"torch_dtype":16})", StatusCode::kInvalidArgument, "torch_dtype"},
       }) {
    SCOPED_TRACE(c.changes);
    ExpectRefusal(Parse("llama", c.changes), c.code, {c.word});
  }
}

TEST(ModelConfig, RefusesOtherComputationsByName) {
  for (const ConfigCase& c : std::vector<ConfigCase>{
           {R"({"model_type":"hyena_dream"})", StatusCode::kUnsupported, "hyena_dream"},
           {R"({"model_type":"gemma2"})", StatusCode::kUnsupported, "gemma2"},
           {R"({"architectures":["LlamaForSequenceClassification"]})", StatusCode::kUnsupported, "Classification"},
           {R"({"quantization_config":{"quant_method":"gptq"}})", StatusCode::kUnsupported, "quantization_config"},
           {R"({"hidden_act":"gelu"})", StatusCode::kUnsupported, "gelu"},
           {R"({"attn_logit_softcapping":50.0})", StatusCode::kUnsupported, "attn_logit_softcapping"},
           {R"({"partial_rotary_factor":0.5})", StatusCode::kUnsupported, "partial_rotary_factor"},
           {R"({"logit_scale":0.25})", StatusCode::kUnsupported, "logit_scale"},
           {R"({"num_local_experts":8})", StatusCode::kUnsupported, "num_local_experts"},
           {R"({"is_encoder_decoder":true})", StatusCode::kUnsupported, "is_encoder_decoder"},
           {R"({"sliding_window":16})", StatusCode::kUnsupported, "sliding_window"},
       }) {
    SCOPED_TRACE(c.changes);
    ExpectRefusal(Parse("llama", c.changes), c.code, {c.word});
  }
  ExpectRefusal(Parse("mistral", R"({"attention_bias":true})"), StatusCode::kUnsupported,
                {"attention_bias", "mistral"});
  ExpectRefusal(Parse("qwen2", R"({"mlp_bias":true})"), StatusCode::kUnsupported, {"mlp_bias", "qwen2"});
}

TEST(ModelConfig, AcceptsNeutralValuesOfForeignKeysAndNeverRunsAutoMap) {
  DF_EXPECT_OK(Parse("llama", R"({"auto_map":{"AutoModel":"evil.Evil"},"pretraining_tp":2,"logit_scale":1.0,
      "is_encoder_decoder":false,"partial_rotary_factor":1.0,"architectures":["LlamaForCausalLM"],"hidden_act":"swish"})"));
}

TEST(ModelConfig, RefusesEveryHostileConfig) {
  for (const char* name : {"heads_0", "heads_not_dividing", "head_dim_odd", "layers_1e9", "hidden_float",
                           "hidden_missing", "rope_theta_0", "rope_unknown_type", "rope_llama3_equal_factors",
                           "architecture_unknown", "quantized_config", "config_truncated"}) {
    EXPECT_FALSE(LoadModelConfig(std::string(kTests) + "hostile/model/" + name).ok()) << name;
  }
  DF_EXPECT_OK(LoadModelConfig(std::string(kTests) + "hostile/model/ok_auto_map"));
}

TEST(ModelConfig, SaysWhichFileIsMissing) {
  ExpectRefusal(LoadModelConfig("/nonexistent"), StatusCode::kNotFound, {"/nonexistent/config.json"});
}

TEST(GenerationConfig, GivesEosListAndSamplingDefaults) {
  const GenerationDefaults defaults =
      ValueOrDie(LoadGenerationDefaults(std::string(kTests) + "golden/models/llama-eos-list"));
  EXPECT_EQ(defaults.eos_ids, (std::vector<int32_t>{5, 138}));
  EXPECT_EQ(defaults.temperature, 0.6);
  EXPECT_EQ(defaults.top_p, 0.9);
  EXPECT_EQ(defaults.top_k, std::nullopt);
}

TEST(GenerationConfig, IsEmptyWithoutAFileAndRefusesBadValues) {
  const testing::TemporaryDirectory directory;
  EXPECT_TRUE(ValueOrDie(LoadGenerationDefaults(directory.path())).eos_ids.empty());
  for (const char* bad : {R"({"temperature":-1})", R"({"top_p":0})", R"({"top_p":2})", R"({"top_k":1.5})",
                          R"({"eos_token_id":"2"})", R"({"temperature":1e400})", "[]", "{"}) {
    testing::WriteFile(directory / "generation_config.json", bad);
    EXPECT_FALSE(LoadGenerationDefaults(directory.path()).ok()) << bad;
  }
}

TEST(VariantConfig, MayDifferInEosRopePositionsVocabularyAndTying) {
  DF_EXPECT_OK(CheckVariantConfig(
      ValueOrDie(Parse("llama")),
      ValueOrDie(Parse("llama", R"({"eos_token_id":[1,2],"rope_theta":5e5,"max_position_embeddings":128,
          "vocab_size":20,"tie_word_embeddings":true})"))));
}

TEST(VariantConfig, RefusesAnyOtherDifferenceNamingTheField) {
  const ModelConfig base = ValueOrDie(Parse("mistral"));
  for (const ConfigCase& c : std::vector<ConfigCase>{{R"({"hidden_size":16})", StatusCode::kUnsupported, "hidden_size"},
                                                     {R"({"num_hidden_layers":3})", {}, "num_hidden_layers"},
                                                     {R"({"num_attention_heads":1})", {}, "num_attention_heads"},
                                                     {R"({"num_key_value_heads":2})", {}, "num_key_value_heads"},
                                                     {R"({"head_dim":8})", {}, "head_dim"},
                                                     {R"({"intermediate_size":16})", {}, "intermediate_size"},
                                                     {R"({"rms_norm_eps":1e-6})", {}, "rms_norm_eps"},
                                                     {R"({"sliding_window":16})", {}, "window of layer 0"}}) {
    SCOPED_TRACE(c.changes);
    ExpectRefusal(CheckVariantConfig(base, ValueOrDie(Parse("mistral", c.changes))), StatusCode::kUnsupported,
                  {c.word});
  }
  ExpectRefusal(CheckVariantConfig(base, ValueOrDie(Parse("llama"))), StatusCode::kUnsupported,
                {"model_type", "llama"});
  ExpectRefusal(CheckVariantConfig(ValueOrDie(Parse("llama")), ValueOrDie(Parse("llama", R"({"mlp_bias":true})"))),
                StatusCode::kUnsupported, {"mlp_bias"});
}

}  // namespace
}  // namespace df
