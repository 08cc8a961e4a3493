#include "format/peft_adapter.h"

#include <gtest/gtest.h>

#include <cmath>
#include <ctime>

#include "format/checkpoint.h"
#include "format/peft_config.h"
#include "testing/refusal.h"
#include "testing/temporary_directory.h"

namespace df {
namespace {

namespace fs = std::filesystem;
using testing::ExpectRefusal;
using testing::TemporaryDirectory;
using testing::ValueOrDie;

constexpr char kTests[] = DELTAFOLD_SOURCE_DIR "/tests/";

// All projections of a checkpoint.
std::vector<LinearModule> ModulesOf(const std::string& directory) {
  const auto checkpoint = ValueOrDie(Checkpoint::Open(directory));
  std::vector<LinearModule> modules;
  for (const std::string& name : checkpoint->names()) {
    constexpr std::string_view kEnd = "_proj.weight";
    if (!name.ends_with(kEnd)) continue;
    const Shape shape = checkpoint->FindOrNull(name)->view.shape;
    modules.push_back({name.substr(0, name.size() - std::string_view(".weight").size()), shape[0], shape[1]});
  }
  return modules;
}

Result<std::map<std::string, LowRank>> OpenAndBind(const std::string& adapter,
                                                   const std::vector<LinearModule>& modules) {
  DF_ASSIGN_OR_RETURN(const auto opened, PeftAdapter::Open(adapter));
  return opened->Bind(modules);
}

std::string Golden(const std::string& base, const std::string& name) {
  return std::string(kTests) + "golden/lora/" + base + "/" + name;
}

class GoldenAdapters : public ::testing::TestWithParam<const char*> {
 protected:
  std::string base_ = GetParam();
  std::vector<LinearModule> modules_ = ModulesOf(std::string(kTests) + "golden/models/" + base_);
  std::map<std::string, LowRank> Bind(const std::string& name) {
    return ValueOrDie(OpenAndBind(Golden(base_, name), modules_));
  }
};
INSTANTIATE_TEST_SUITE_P(Bases, GoldenAdapters, ::testing::Values("llama3-gqa", "qwen2-bias-tied"));

TEST_P(GoldenAdapters, BindWithTheScaleOfTheirKind) {
  for (const auto& [path, pair] : Bind("plain-r4")) EXPECT_EQ(pair.scale, 8.0F / 4.0F) << path;
  for (const auto& [path, pair] : Bind("rslora-r8")) EXPECT_EQ(pair.scale, static_cast<float>(16.0 / std::sqrt(8.0)));
  EXPECT_EQ(Bind("all-linear").size(), modules_.size());
  EXPECT_FALSE(Bind("regex-target").empty());
  EXPECT_FALSE(Bind("named-adapter").empty());
  for (const auto& [path, pair] : Bind("layers-to-transform")) EXPECT_TRUE(path.starts_with("model.layers.1.")) << path;
}

TEST_P(GoldenAdapters, TakeTheFirstPatternInFileOrder) {
  const auto pairs = Bind("patterns");
  struct Expected {
    const char* path;
    size_t rank;
    double alpha;
  };
  // rank_pattern: ".*\.0\.mlp\.(gate|up)_proj" 3, "layers.1.mlp.down_proj" 6, "mlp.gate_proj" 5, "q_proj" 2, else 4;
  // alpha_pattern: "down_proj" 12, "k_proj" 3, "model\.layers\.1\.self_attn\.q_proj" 10, else 8.
  for (const Expected& e : {Expected{"model.layers.0.mlp.gate_proj", 3, 8},
                            {"model.layers.1.mlp.gate_proj", 5, 8},
                            {"model.layers.0.mlp.up_proj", 3, 8},
                            {"model.layers.1.mlp.up_proj", 4, 8},
                            {"model.layers.0.mlp.down_proj", 4, 12},
                            {"model.layers.1.mlp.down_proj", 6, 12},
                            {"model.layers.0.self_attn.q_proj", 2, 8},
                            {"model.layers.1.self_attn.q_proj", 2, 10},
                            {"model.layers.1.self_attn.k_proj", 4, 3},
                            {"model.layers.1.self_attn.o_proj", 4, 8}}) {
    const auto pair = pairs.find(e.path);
    ASSERT_NE(pair, pairs.end()) << e.path;
    EXPECT_EQ(pair->second.a.shape[0], e.rank) << e.path;
    EXPECT_EQ(pair->second.scale, static_cast<float>(e.alpha / static_cast<double>(e.rank))) << e.path;
  }
}

TEST_P(GoldenAdapters, OfOtherKindsAreRefusedNamingTheField) {
  const std::vector<std::pair<const char*, const char*>> cases = {{"dora", "use_dora"},
                                                                  {"embedding-lora", "embedding"},
                                                                  {"modules-to-save-lm-head", "modules_to_save"},
                                                                  {"trainable-tokens", "trainable_token_indices"}};
  for (const auto& [name, word] : cases) {
    ExpectRefusal(OpenAndBind(Golden(base_, name), modules_), StatusCode::kUnsupported, {word});
  }
}

TEST(PeftAdapter, RefusesTheOtherReferenceKindsNamingTheField) {
  const auto llama = ModulesOf(std::string(kTests) + "golden/models/llama3-gqa");
  ExpectRefusal(OpenAndBind(Golden("llama3-gqa", "lora-bias"), llama), StatusCode::kUnsupported, {"lora_bias"});
  ExpectRefusal(OpenAndBind(Golden("llama3-gqa", "lm-head-target"), llama), StatusCode::kUnsupported, {"base_layer"});
  ExpectRefusal(OpenAndBind(Golden("llama-bias", "bias-lora-only"), llama), StatusCode::kUnsupported, {"\"bias\""});
  EXPECT_EQ(ValueOrDie(OpenAndBind(Golden("llama3-gqa", "bf16-stored"), llama)).begin()->second.a.dtype, DType::kBf16);
}

TEST(PeftAdapter, RefusesEveryHostileAdapterNamingTheCause) {
  const auto modules = ModulesOf(std::string(kTests) + "hostile/model/ok");
  const auto bind = [&modules](const std::string& name) {
    return OpenAndBind(std::string(kTests) + "hostile/adapter/" + name, modules);
  };
  ExpectRefusal(bind("r_0"), StatusCode::kInvalidArgument, {"\"r\"", "0"});
  ExpectRefusal(bind("r_1e6"), StatusCode::kInvalidArgument, {"\"r\"", "1000000"});
  ExpectRefusal(bind("ab_swapped"), StatusCode::kCorrupt, {"lora_A", "[8, 2]", "[2, 8]"});
  ExpectRefusal(bind("alpha_nan"), StatusCode::kCorrupt, {"adapter_config.json"});
  ExpectRefusal(bind("target_nothing"), StatusCode::kCorrupt, {"conv_proj"});
  ExpectRefusal(bind("pickle_only"), StatusCode::kUnsupported, {"pickled", "safetensors"});
  ExpectRefusal(bind("layer_absent"), StatusCode::kCorrupt, {"layers.7"});
  ExpectRefusal(bind("d_in_mismatch"), StatusCode::kCorrupt, {"lora_A", "[2, 9]", "[2, 8]"});
  ExpectRefusal(bind("type_vera"), StatusCode::kUnsupported, {"peft_type", "VERA"});
  ExpectRefusal(bind("config_not_json"), StatusCode::kCorrupt, {"not valid JSON"});
  ExpectRefusal(bind("dora_without_magnitude"), StatusCode::kUnsupported, {"use_dora"});
  ExpectRefusal(bind("modules_to_save_missing"), StatusCode::kUnsupported, {"modules_to_save"});
  ExpectRefusal(bind("no_such_folder"), StatusCode::kNotFound, {"adapter_config.json"});
  DF_EXPECT_OK(bind("ok"));
  DF_EXPECT_OK(bind("ok_base_path_dotdot"));
  const std::clock_t start = std::clock();
  DF_EXPECT_OK(bind("ok_rank_pattern_nested_plus"));
  EXPECT_LT(std::clock() - start, CLOCKS_PER_SEC);
}

// The sound hostile-set adapter with other tensors.
class AdapterTensors : public ::testing::Test {
 protected:
  AdapterTensors() {
    fs::copy(std::string(kTests) + "hostile/adapter/ok", directory_.path(), fs::copy_options::recursive);
  }
  Result<std::map<std::string, LowRank>> BindWith(const std::vector<TensorSpec>& specs) {
    fs::remove(directory_ / "adapter_model.safetensors");
    auto writer = ValueOrDie(SafetensorsWriter::Create(directory_ / "adapter_model.safetensors", specs, {}));
    for (const TensorSpec& spec : specs) {
      const std::vector<uint8_t> zeros(*spec.shape.TryElements() * DTypeBytes(spec.dtype));
      DF_RETURN_IF_ERROR(writer.Write(zeros));
    }
    DF_RETURN_IF_ERROR(writer.Commit());
    return OpenAndBind(directory_.path(), {{"model.layers.0.self_attn.q_proj", 8, 8}});
  }
  const std::string kQ = "base_model.model.model.layers.0.self_attn.q_proj";
  TemporaryDirectory directory_;
};

TEST_F(AdapterTensors, MayCarryTheNameOfTheAdapter) {
  for (const char* infix : {"", ".default", ".my-adapter"}) {
    DF_EXPECT_OK(BindWith({{kQ + ".lora_A" + infix + ".weight", DType::kF32, {2, 8}},
                           {kQ + ".lora_B" + infix + ".weight", DType::kF32, {8, 2}}}));
  }
}

TEST_F(AdapterTensors, MustComeInPairsOfMatrices) {
  const TensorSpec a{kQ + ".lora_A.weight", DType::kF32, {2, 8}}, b{kQ + ".lora_B.weight", DType::kF32, {8, 2}};
  ExpectRefusal(BindWith({a}), StatusCode::kCorrupt, {"q_proj", "no lora_B"});
  ExpectRefusal(BindWith({b}), StatusCode::kCorrupt, {"q_proj", "no lora_A"});
  ExpectRefusal(BindWith({}), StatusCode::kCorrupt, {"no LoRA factors"});
  ExpectRefusal(BindWith({a, {kQ + ".lora_A.default.weight", DType::kF32, {2, 8}}, b}), StatusCode::kCorrupt,
                {"two factors"});
  ExpectRefusal(BindWith({{a.name, DType::kF32, {16}}, b}), StatusCode::kCorrupt, {"[16]"});
  ExpectRefusal(BindWith({{a.name, DType::kI32, {2, 8}}, b}), StatusCode::kCorrupt, {"I32"});
  ExpectRefusal(BindWith({{a.name, DType::kF32, {3, 8}}, {b.name, DType::kF32, {8, 3}}}), StatusCode::kCorrupt,
                {"[3, 8]", "[2, 8]"});
}

TEST_F(AdapterTensors, OfUnknownNamesAreRefused) {
  for (const std::string& name :
       {std::string("x"), std::string("base_model.model.weight"), std::string("base_model.model..lora_A.weight"),
        kQ + ".lora_A.a.b.weight", kQ + ".lora_C.weight", kQ + ".lora_B.bias", kQ + ".lora_magnitude_vector",
        kQ + ".base_layer.weight", std::string("base_model.model.model.embed_tokens.lora_embedding_A"),
        std::string("model.layers.0.self_attn.q_proj.lora_A.weight")}) {
    const Status status = testing::StatusOf(BindWith({{name, DType::kF32, {2, 8}}}));
    EXPECT_EQ(status.code(), StatusCode::kUnsupported) << name << ": " << status.message();
  }
}

TEST(PeftAdapter, AsksWhichWhenAFolderHoldsSeveral) {
  const TemporaryDirectory directory;
  for (const char* name : {"a", "b"})
    fs::copy(std::string(kTests) + "hostile/adapter/ok", directory / name, fs::copy_options::recursive);
  ExpectRefusal(PeftAdapter::Open(directory.path()), StatusCode::kInvalidArgument, {"2 adapters", "/a"});
  fs::remove_all(directory / "b");
  DF_EXPECT_OK(PeftAdapter::Open(directory.path()));
}

TEST(PeftAdapter, DigestChangesWithConfigAndTensors) {
  const auto digest = [](const std::string& path) { return ValueOrDie(ValueOrDie(PeftAdapter::Open(path))->Digest()); };
  const TemporaryDirectory directory;
  fs::copy(std::string(kTests) + "hostile/adapter/ok", directory.path(), fs::copy_options::recursive);
  const std::string before = digest(directory.path());
  EXPECT_EQ(digest(std::string(kTests) + "hostile/adapter/ok"), before);
  std::string tensors = testing::ReadFile(directory / "adapter_model.safetensors");
  tensors.back() ^= 1;
  fs::remove(directory / "adapter_model.safetensors");
  testing::WriteFile(directory / "adapter_model.safetensors", tensors);
  EXPECT_NE(digest(directory.path()), before);
}

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
  for (const char* field : {"use_dora", "lora_bias", "use_qalora"}) {
    ExpectRefusal(Parse("{\"" + std::string(field) + "\":true}"), StatusCode::kUnsupported, {field});
  }
  for (const char* field : {"modules_to_save", "trainable_token_indices", "target_parameters", "layer_replication",
                            "alora_invocation_tokens"}) {
    ExpectRefusal(Parse("{\"" + std::string(field) + "\":[1]}"), StatusCode::kUnsupported, {field});
  }
  for (const char* init : {"\"pissa\"", "\"olora\"", "\"loftq\"", "\"corda\"", "\"lora_ga\"", "7"}) {
    ExpectRefusal(Parse(R"({"init_lora_weights":)" + std::string(init) + "}"), StatusCode::kUnsupported,
                  {"init_lora_weights"});
  }
  ExpectRefusal(Parse(R"({"bias":"all"})"), StatusCode::kUnsupported, {"bias"});
  DF_EXPECT_OK(
      Parse(R"({"init_lora_weights":"gaussian","modules_to_save":[],"loftq_config":{},"fan_in_fan_out":false})"));
}

TEST(PeftConfig, RefusesValuesOfTheWrongTypeOrRange) {
  for (const char* changes :
       {R"({"r":0})", R"({"r":-1})", R"({"r":4.5})", R"({"r":null})", R"({"r":65537})", R"({"lora_alpha":"8"})",
        R"({"lora_alpha":null})", R"({"target_modules":null})", R"({"target_modules":7})", R"({"target_modules":[7]})",
        R"({"rank_pattern":[]})", R"({"rank_pattern":{"q":0}})", R"({"rank_pattern":{"q":1.5}})",
        R"({"rank_pattern":{"q":1e300}})", R"({"alpha_pattern":{"q":"1"}})", R"({"use_rslora":1})",
        R"({"layers_to_transform":[-1]})", R"({"layers_to_transform":["1"]})", R"({"layers_pattern":[7]})"}) {
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
  std::string many = R"({"alpha_pattern":{)";
  for (int i = 0; i < 300; ++i) many += (i ? ",\"" : "\"") + std::to_string(i) + "\":1";
  ExpectRefusal(Parse(many + "}}"), StatusCode::kInvalidArgument, {"alpha_pattern", "256"});
  ExpectRefusal(Parse(R"X({"layers_pattern":"(a|b)"})X"), StatusCode::kUnsupported, {"layers_pattern"});
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
