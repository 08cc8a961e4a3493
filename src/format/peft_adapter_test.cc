#include "format/peft_adapter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <limits>

#include "format/checkpoint.h"
#include "testing/refusal.h"
#include "testing/temporary_directory.h"

namespace df {
namespace {

namespace fs = std::filesystem;
using testing::ExpectRefusal;
using testing::TemporaryDirectory;
using testing::ValueOrDie;

constexpr char kTests[] = DELTAFOLD_SOURCE_DIR "/tests/";

// Every module of a checkpoint that an adapter may change.
std::vector<BaseModule> ModulesOf(const std::string& directory) {
  const auto checkpoint = ValueOrDie(Checkpoint::Open(directory));
  std::vector<BaseModule> modules;
  const auto path_of = [](const std::string& name) { return name.substr(0, name.rfind('.')); };
  const StoredTensor* embedding = checkpoint->FindOrNull("model.embed_tokens.weight");
  for (const ModuleKind kind : {ModuleKind::kEmbedding, ModuleKind::kHead}) {
    modules.push_back({.path = kind == ModuleKind::kHead ? "lm_head" : "model.embed_tokens",
                       .d_out = embedding->view.shape[0],
                       .d_in = embedding->view.shape[1],
                       .kind = kind});
  }
  for (const std::string& name : checkpoint->names()) {
    const Shape shape = checkpoint->FindOrNull(name)->view.shape;
    if (name.ends_with("_proj.weight")) {
      modules.push_back({.path = path_of(name),
                         .d_out = shape[0],
                         .d_in = shape[1],
                         .kind = ModuleKind::kLinear,
                         .has_bias = checkpoint->FindOrNull(path_of(name) + ".bias") != nullptr});
    } else if (name.ends_with("norm.weight")) {
      modules.push_back({.path = path_of(name), .d_out = shape[0], .d_in = 1, .kind = ModuleKind::kNorm});
    }
  }
  return modules;
}

Result<AdapterChanges> OpenAndBind(const std::string& adapter, const std::vector<BaseModule>& modules) {
  DF_ASSIGN_OR_RETURN(const auto opened, PeftAdapter::Open(adapter));
  return opened->Bind(modules);
}

std::string Golden(const std::string& base, const std::string& name) {
  return std::string(kTests) + "golden/lora/" + base + "/" + name;
}

class GoldenAdapters : public ::testing::TestWithParam<const char*> {
 protected:
  std::string base_ = GetParam();
  std::vector<BaseModule> modules_ = ModulesOf(std::string(kTests) + "golden/models/" + base_);
  std::vector<std::shared_ptr<const PeftAdapter>> opened_;  // keeps the views alive

  AdapterChanges BindAll(const std::string& name) {
    opened_.push_back(ValueOrDie(PeftAdapter::Open(Golden(base_, name))));
    return ValueOrDie(opened_.back()->Bind(modules_));
  }
  // The low-rank pair of each module.
  std::map<std::string, LowRank> Bind(const std::string& name) {
    std::map<std::string, LowRank> pairs;
    for (const auto& [path, change] : BindAll(name).modules) pairs.emplace(path, change.weight.low_rank.at(0));
    return pairs;
  }
};
INSTANTIATE_TEST_SUITE_P(Bases, GoldenAdapters, ::testing::Values("llama3-gqa", "qwen2-bias-tied"));

TEST_P(GoldenAdapters, BindWithTheScaleOfTheirKind) {
  for (const auto& [path, pair] : Bind("plain-r4")) EXPECT_EQ(pair.scale, 8.0F / 4.0F) << path;
  for (const auto& [path, pair] : Bind("rslora-r8")) EXPECT_EQ(pair.scale, static_cast<float>(16.0 / std::sqrt(8.0)));
  const auto is_linear = [](const BaseModule& module) { return module.kind == ModuleKind::kLinear; };
  EXPECT_EQ(Bind("all-linear").size(), static_cast<size_t>(std::ranges::count_if(modules_, is_linear)));
  EXPECT_FALSE(Bind("regex-target").empty());
  EXPECT_FALSE(Bind("named-adapter").empty());
  for (const auto& [path, pair] : Bind("layers-to-transform")) EXPECT_TRUE(path.starts_with("model.layers.1.")) << path;
}

TEST_P(GoldenAdapters, SayWhatBecomesOfEveryModule) {
  for (const auto& [path, change] : BindAll("dora").modules) {
    EXPECT_EQ(change.weight.magnitude->elements(), change.weight.d_out) << path;
  }
  const auto tokens = BindAll("trainable-tokens").modules.at("model.embed_tokens").weight;
  EXPECT_EQ(tokens.rows->index, (std::vector<int32_t>{5, 17, 40}));
  const AdapterChanges embedding = BindAll("embedding-lora");
  const LinearDelta& table = embedding.modules.at("model.embed_tokens").weight;
  EXPECT_EQ(table.low_rank[0].a.shape, (Shape{4, table.d_in}));
  EXPECT_EQ(table.low_rank[0].b.shape, (Shape{table.d_out, 4}));
  EXPECT_TRUE(table.raw);  // the copy of the base's matrix that PEFT stores
  EXPECT_TRUE(BindAll("modules-to-save-lm-head").modules.at("lm_head").weight.raw);
  const ModuleChange biased = BindAll("lora-bias").modules.at("model.layers.0.self_attn.q_proj");
  EXPECT_EQ(biased.added_bias->elements(), biased.weight.d_out);
}

TEST(PeftAdapter, PutsTokensInOrderWithTheirRows) {
  const auto adapter = ValueOrDie(PeftAdapter::Open(Golden("llama3-gqa", "tokens-of-both")));
  const auto changes = ValueOrDie(adapter->Bind(ModulesOf(std::string(kTests) + "golden/models/llama3-gqa")));
  const ReplacedRows& rows = *changes.modules.at("model.embed_tokens").weight.rows;
  EXPECT_EQ(rows.index, (std::vector<int32_t>{5, 17, 40}));  // stored as 40, 5, 17
  const TensorView* stored =
      adapter->file().FindOrNull("base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta");
  const size_t d = stored->shape[1];
  EXPECT_EQ(FloatAt(rows.values, 0), FloatAt(*stored, d));
  EXPECT_EQ(FloatAt(rows.values, 2 * d), FloatAt(*stored, 0));
  EXPECT_EQ(changes.modules.at("lm_head").weight.rows->index, (std::vector<int32_t>{9, 200}));
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

TEST(PeftAdapter, TakesFactorsAsTheyAreStored) {
  const auto llama = ModulesOf(std::string(kTests) + "golden/models/llama3-gqa");
  const auto changes = ValueOrDie(OpenAndBind(Golden("llama3-gqa", "bf16-stored"), llama));
  EXPECT_EQ(changes.modules.begin()->second.weight.low_rank[0].a.dtype, DType::kBf16);
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
  ExpectRefusal(bind("dora_without_magnitude"), StatusCode::kCorrupt, {"use_dora", "q_proj"});
  ExpectRefusal(bind("modules_to_save_missing"), StatusCode::kCorrupt, {"modules_to_save", "lm_head"});
  ExpectRefusal(bind("no_such_folder"), StatusCode::kNotFound, {"adapter_config.json"});
  DF_EXPECT_OK(bind("ok"));
  DF_EXPECT_OK(bind("ok_base_path_dotdot"));
  const std::clock_t start = std::clock();
  DF_EXPECT_OK(bind("ok_rank_pattern_nested_plus"));
  EXPECT_LT(std::clock() - start, CLOCKS_PER_SEC);
}

// The sound hostile-set adapter with other tensors and another config, on a model of one layer with a vocabulary of 6.
class AdapterTensors : public ::testing::Test {
 protected:
  AdapterTensors() {
    fs::copy(std::string(kTests) + "hostile/adapter/ok", directory_.path(), fs::copy_options::recursive);
  }
  void ChangeConfig(std::string_view changes) {
    Json config = ValueOrDie(ReadJsonFile(std::string(kTests) + "hostile/adapter/ok/adapter_config.json"));
    config.merge_patch(ValueOrDie(ParseJson(changes)));
    fs::remove(directory_ / "adapter_config.json");
    testing::WriteFile(directory_ / "adapter_config.json", DumpJson(config));
  }
  // All values are `fill`.
  Result<AdapterChanges> BindWith(const std::vector<TensorSpec>& specs, float fill = 0) {
    fs::remove(directory_ / "adapter_model.safetensors");
    auto writer = ValueOrDie(SafetensorsWriter::Create(directory_ / "adapter_model.safetensors", specs, {}));
    for (const TensorSpec& spec : specs) {
      const std::vector<float> values(*spec.shape.TryElements(), fill);
      DF_RETURN_IF_ERROR(writer.Write(AsBytes(std::span<const float>(values))));
    }
    DF_RETURN_IF_ERROR(writer.Commit());
    return OpenAndBind(directory_.path(),
                       {{.path = "model.embed_tokens", .d_out = 6, .d_in = 8, .kind = ModuleKind::kEmbedding},
                        {.path = kQPath, .d_out = 8, .d_in = 8, .has_bias = true},
                        {.path = "model.layers.0.mlp.up_proj", .d_out = 12, .d_in = 8},
                        {.path = "model.norm", .d_out = 8, .d_in = 1, .kind = ModuleKind::kNorm},
                        {.path = "lm_head", .d_out = 6, .d_in = 8, .kind = ModuleKind::kHead}});
  }
  // The pair of q_proj and `more`.
  Result<AdapterChanges> BindPairAnd(std::vector<TensorSpec> more, float fill = 0) {
    more.push_back({kQ + ".lora_A.weight", DType::kF32, {2, 8}});
    more.push_back({kQ + ".lora_B.weight", DType::kF32, {8, 2}});
    return BindWith(more, fill);
  }
  const std::string kQPath = "model.layers.0.self_attn.q_proj";
  const std::string kQ = "base_model.model." + kQPath;
  const std::string kUp = "base_model.model.model.layers.0.mlp.up_proj";
  const std::string kEmbedding = "base_model.model.model.embed_tokens";
  const std::string kHead = "base_model.model.lm_head";
  const std::string kTokens = ".token_adapter.trainable_tokens_delta";
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
                {"same part"});
  ExpectRefusal(BindWith({{a.name, DType::kF32, {16}}, b}), StatusCode::kCorrupt, {"[16]"});
  ExpectRefusal(BindWith({{a.name, DType::kI32, {2, 8}}, b}), StatusCode::kCorrupt, {"I32"});
  ExpectRefusal(BindWith({{a.name, DType::kF32, {3, 8}}, {b.name, DType::kF32, {8, 3}}}), StatusCode::kCorrupt,
                {"[3, 8]", "[2, 8]"});
}

TEST_F(AdapterTensors, OfUnknownNamesAreRefused) {
  for (const std::string& name :
       {std::string("x"), std::string("base_model.model.weight"), std::string("base_model.model..lora_A.weight"),
        kQ + ".lora_A.a.b.weight", kQ + ".lora_C.weight", kQ + ".lora_A.bias", kQ + ".modules_to_save.a.weight",
        kQ + ".base_layer.base_layer.weight", kQ + ".original_module.weight", kQ + ".lora_embedding_A.a.b",
        kQ + ".trainable_tokens_delta", std::string("model.layers.0.self_attn.q_proj.lora_A.weight")}) {
    ExpectRefusal(BindWith({{name, DType::kF32, {2, 8}}}), StatusCode::kUnsupported, {name.c_str()});
  }
}

TEST_F(AdapterTensors, WithoutAHomeInTheBaseAreRefused) {
  ExpectRefusal(BindPairAnd({{"base_model.model.score.weight", DType::kF32, {2, 8}}}), StatusCode::kCorrupt, {"score"});
  ExpectRefusal(BindPairAnd({{"base_model.model.model.norm.bias", DType::kF32, {8}}}), StatusCode::kCorrupt,
                {"model.norm.bias"});
  ExpectRefusal(BindPairAnd({{kEmbedding + ".bias", DType::kF32, {8}}}), StatusCode::kCorrupt, {"embed_tokens.bias"});
}

TEST_F(AdapterTensors, OfWhichTheConfigSaysNothingAreRefused) {
  ExpectRefusal(
      BindPairAnd({{kUp + ".lora_A.weight", DType::kF32, {2, 8}}, {kUp + ".lora_B.weight", DType::kF32, {12, 2}}}),
      StatusCode::kCorrupt, {"up_proj", "target_modules"});
  ExpectRefusal(BindPairAnd({{kUp + ".weight", DType::kF32, {12, 8}}}), StatusCode::kCorrupt,
                {"up_proj", "modules_to_save"});
  ExpectRefusal(BindPairAnd({{"base_model.model.model.norm.weight", DType::kF32, {8}}}), StatusCode::kCorrupt,
                {"model.norm", "modules_to_save"});
  ExpectRefusal(BindPairAnd({{kQ + ".base_layer.bias", DType::kF32, {8}}}), StatusCode::kCorrupt, {"bias"});
  ExpectRefusal(BindPairAnd({{kQ + ".lora_B.bias", DType::kF32, {8}}}), StatusCode::kCorrupt, {"lora_bias"});
  ExpectRefusal(BindPairAnd({{kQ + ".lora_magnitude_vector", DType::kF32, {8}}}), StatusCode::kCorrupt, {"use_dora"});
  ExpectRefusal(BindPairAnd({{kEmbedding + kTokens, DType::kF32, {2, 8}}}), StatusCode::kCorrupt,
                {"trainable_token_indices"});
  ExpectRefusal(BindPairAnd({{kQ + kTokens, DType::kF32, {2, 8}}}), StatusCode::kCorrupt, {"q_proj"});
}

TEST_F(AdapterTensors, ThatTheConfigPromisesMustBeThere) {
  ChangeConfig(R"({"use_dora":true})");
  ExpectRefusal(BindPairAnd({}), StatusCode::kCorrupt, {"use_dora", "q_proj"});
  ChangeConfig(R"({"lora_bias":true})");
  ExpectRefusal(BindPairAnd({}), StatusCode::kCorrupt, {"lora_bias", "q_proj"});
  ChangeConfig(R"({"modules_to_save":["norm"]})");
  ExpectRefusal(BindPairAnd({}), StatusCode::kCorrupt, {"modules_to_save", "model.norm"});
  ChangeConfig(R"({"modules_to_save":["q_proj"]})");
  ExpectRefusal(BindPairAnd({{kQ + ".weight", DType::kF32, {8, 8}}}), StatusCode::kCorrupt, {"q_proj", "no bias"});
  ChangeConfig(R"({"trainable_token_indices":[1]})");
  ExpectRefusal(BindPairAnd({}), StatusCode::kCorrupt, {"trainable_token_indices", "embed_tokens"});
  ChangeConfig(R"({"trainable_token_indices":{"q_proj":[1]}})");
  ExpectRefusal(BindPairAnd({}), StatusCode::kCorrupt, {"trainable_token_indices", "q_proj"});
}

TEST_F(AdapterTensors, OfEveryKindHaveTheShapesOfTheirModule) {
  ChangeConfig(R"({"use_dora":true})");
  DF_EXPECT_OK(BindPairAnd({{kQ + ".lora_magnitude_vector", DType::kF32, {8}}}));
  DF_EXPECT_OK(BindPairAnd({{kQ + ".lora_magnitude_vector.default.weight", DType::kF32, {8}}}));
  ExpectRefusal(BindPairAnd({{kQ + ".lora_magnitude_vector", DType::kF32, {7}}}), StatusCode::kCorrupt, {"[7]", "[8]"});
  ChangeConfig(R"({"bias":"lora_only"})");
  DF_EXPECT_OK(BindPairAnd({{kQ + ".bias", DType::kF32, {8}}}));
  ExpectRefusal(BindPairAnd({{kQ + ".base_layer.bias", DType::kF32, {9}}}), StatusCode::kCorrupt, {"[9]", "[8]"});
  ExpectRefusal(BindPairAnd({{kUp + ".bias", DType::kF32, {12}}}), StatusCode::kCorrupt, {"up_proj", "no bias"});
  ChangeConfig(R"({"modules_to_save":["norm","lm_head"]})");
  const TensorSpec norm{"base_model.model.model.norm.weight", DType::kF32, {8}};
  DF_EXPECT_OK(BindPairAnd({norm, {kHead + ".weight", DType::kF32, {7, 8}}}));  // a larger vocabulary
  ExpectRefusal(BindPairAnd({norm, {kHead + ".weight", DType::kF32, {6, 9}}}), StatusCode::kCorrupt, {"[6, 9]"});
  ExpectRefusal(BindPairAnd({norm, {kHead + ".weight", DType::kF32, {0, 8}}}), StatusCode::kCorrupt, {"[0, 8]"});
  ExpectRefusal(BindPairAnd({norm, {kHead + ".weight", DType::kF32, {48}}}), StatusCode::kCorrupt, {"[48]"});
}

TEST_F(AdapterTensors, OfAnEmbeddingAreTurnedToItsTable) {
  ChangeConfig(R"({"target_modules":["embed_tokens"]})");
  const std::string a = kEmbedding + ".lora_embedding_A", b = kEmbedding + ".lora_embedding_B.default";
  DF_EXPECT_OK(BindWith({{a, DType::kF32, {2, 6}}, {b, DType::kF32, {8, 2}}}));
  ExpectRefusal(BindWith({{a, DType::kF32, {2, 8}}, {b, DType::kF32, {8, 2}}}), StatusCode::kCorrupt,
                {"[2, 8]", "[2, 6]"});
  ExpectRefusal(BindWith({{a, DType::kF32, {2, 6}}}), StatusCode::kCorrupt, {"lora_embedding_B"});
  ExpectRefusal(BindWith({{kEmbedding + ".lora_A.weight", DType::kF32, {2, 8}},
                          {kEmbedding + ".lora_B.weight", DType::kF32, {6, 2}}}),
                StatusCode::kCorrupt, {"embedding"});
  ChangeConfig(R"({"target_modules":["embed_tokens"],"use_dora":true})");
  ExpectRefusal(BindWith({{a, DType::kF32, {2, 6}}, {b, DType::kF32, {8, 2}}}), StatusCode::kUnsupported, {"use_dora"});
}

TEST_F(AdapterTensors, OfTokensAreInTheVocabularyAndOnlyOnce) {
  const TensorSpec rows{kEmbedding + kTokens, DType::kF32, {2, 8}};
  ChangeConfig(R"({"trainable_token_indices":[5,0]})");
  DF_EXPECT_OK(BindPairAnd({rows}));
  ExpectRefusal(BindPairAnd({{rows.name, DType::kF32, {3, 8}}}), StatusCode::kCorrupt, {"[3, 8]", "[2, 8]"});
  ChangeConfig(R"({"trainable_token_indices":[0,6]})");
  ExpectRefusal(BindPairAnd({rows}), StatusCode::kInvalidArgument, {"trainable_token_indices", "6"});
  ChangeConfig(R"({"trainable_token_indices":[2147483647,0]})");
  ExpectRefusal(BindPairAnd({rows}), StatusCode::kInvalidArgument, {"2147483647"});
}

TEST_F(AdapterTensors, ThatAreNotFiniteAreRefusedByName) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    ExpectRefusal(BindPairAnd({}, bad), StatusCode::kCorrupt, {"not finite", "q_proj.lora_A"});
  }
}

// A sparse file may claim terabytes: what does not fit the base is refused before a value is read.
TEST_F(AdapterTensors, OfAShapeThatDoesNotFitAreRefusedUnread) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  ExpectRefusal(
      BindWith({{kQ + ".lora_A.weight", DType::kF32, {2, 80}}, {kQ + ".lora_B.weight", DType::kF32, {8, 2}}}, nan),
      StatusCode::kCorrupt, {"[2, 80]", "[2, 8]"});
  ChangeConfig(R"({"modules_to_save":["lm_head"]})");
  ExpectRefusal(BindPairAnd({{kHead + ".weight", DType::kF32, {600, 8}}}), StatusCode::kCorrupt,
                {"[600, 8]", "[6, 8]"});
}

TEST_F(AdapterTensors, OfASavedModuleMayEndAsThePlainNameDoes) {
  ChangeConfig(R"({"modules_to_save":["orm"]})");  // as PEFT matches: model.norm ends so
  DF_EXPECT_OK(BindPairAnd({{"base_model.model.model.norm.weight", DType::kF32, {8}}}));
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

}  // namespace
}  // namespace df
