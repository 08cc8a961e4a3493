#include "tools/plan.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/float16.h"
#include "base/json.h"
#include "base/rng.h"
#include "codec/code.h"
#include "format/delta_dir.h"
#include "kernels/packed.h"
#include "model/weights.h"
#include "testing/refusal.h"
#include "testing/status_matchers.h"
#include "tools/plan_code.h"

namespace df::tools {
namespace {

using testing::ExpectRefusal;
using testing::ValueOrDie;

constexpr char kDemo[] = DELTAFOLD_SOURCE_DIR "/demo/";

// What the public config.json files say of the computation.
constexpr char kLlama27b[] = R"({"architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": 4096,
  "intermediate_size": 11008, "max_position_embeddings": 4096, "model_type": "llama", "num_attention_heads": 32,
  "num_hidden_layers": 32, "num_key_value_heads": 32, "rms_norm_eps": 1e-05, "tie_word_embeddings": false,
  "torch_dtype": "float16", "vocab_size": 32000})";
constexpr char kLlama270b[] = R"({"architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": 8192,
  "intermediate_size": 28672, "max_position_embeddings": 4096, "model_type": "llama", "num_attention_heads": 64,
  "num_hidden_layers": 80, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "tie_word_embeddings": false,
  "torch_dtype": "float16", "vocab_size": 32000})";
constexpr char kLlama38b[] = R"({"architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": 4096,
  "intermediate_size": 14336, "max_position_embeddings": 8192, "model_type": "llama", "num_attention_heads": 32,
  "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 500000.0,
  "tie_word_embeddings": false, "torch_dtype": "bfloat16", "vocab_size": 128256})";
constexpr char kLlama370b[] = R"({"architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": 8192,
  "intermediate_size": 28672, "max_position_embeddings": 8192, "model_type": "llama", "num_attention_heads": 64,
  "num_hidden_layers": 80, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 500000.0,
  "tie_word_embeddings": false, "torch_dtype": "bfloat16", "vocab_size": 128256})";
constexpr char kMistral7b[] = R"({"architectures": ["MistralForCausalLM"], "hidden_act": "silu", "hidden_size": 4096,
  "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mistral", "num_attention_heads": 32,
  "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
  "sliding_window": 4096, "tie_word_embeddings": false, "torch_dtype": "bfloat16", "vocab_size": 32000})";
constexpr char kQwen257b[] = R"({"architectures": ["Qwen2ForCausalLM"], "hidden_act": "silu", "hidden_size": 3584,
  "intermediate_size": 18944, "max_position_embeddings": 32768, "max_window_layers": 28, "model_type": "qwen2",
  "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4, "rms_norm_eps": 1e-06,
  "rope_theta": 1000000.0, "sliding_window": 131072, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
  "use_sliding_window": false, "vocab_size": 152064})";
constexpr char kQwen306b[] = R"({"architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "head_dim": 128,
  "hidden_act": "silu", "hidden_size": 1024, "intermediate_size": 3072, "max_position_embeddings": 40960,
  "max_window_layers": 28, "model_type": "qwen3", "num_attention_heads": 16, "num_hidden_layers": 28,
  "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_theta": 1000000, "sliding_window": null,
  "tie_word_embeddings": true, "torch_dtype": "bfloat16", "use_sliding_window": false, "vocab_size": 151936})";

ModelConfig ConfigOf(const char* text) { return ValueOrDie(ParseModelConfig(ValueOrDie(ParseJson(text)))); }

Plan PlanOf(const char* config, const PlanOptions& options = {}) {
  return ValueOrDie(MakePlan(ConfigOf(config), options));
}

double Value(const PlanRow& row, const std::string& name) {
  const Figure* figure = row.FindOrNull(name);
  EXPECT_NE(figure, nullptr) << name;
  return figure == nullptr ? -1 : figure->value;
}

TEST(Plan, CountsTheParametersThatThePublishedModelsHave) {
  const std::pair<const char*, double> published[] = {{kLlama27b, 6'738'415'616},  {kLlama270b, 68'976'648'192},
                                                      {kLlama38b, 8'030'261'248},  {kLlama370b, 70'553'706'496},
                                                      {kMistral7b, 7'241'732'096}, {kQwen257b, 7'615'616'512},
                                                      {kQwen306b, 596'049'920}};
  for (const auto& [config, parameters] : published) {
    EXPECT_EQ(Value(PlanOf(config).model, "parameters"), parameters) << config;
  }
}

TEST(Plan, SaysWhatOneBitSavesInKnownModels) {
  const PlanOptions one_bit = {.codes = {"scalar"}};
  // Embedding and head kept whole: about 10, 14 and 5.4 times smaller.
  EXPECT_NEAR(Value(PlanOf(kLlama27b, one_bit).codes[0], "times_smaller"), 10.1, 0.05);
  EXPECT_NEAR(Value(PlanOf(kLlama270b, one_bit).codes[0], "times_smaller"), 14.36, 0.05);
  EXPECT_NEAR(Value(PlanOf(kLlama38b, one_bit).codes[0], "times_smaller"), 5.4, 0.05);
  // Shared embeddings: what 128256 rows cost otherwise.
  const PlanOptions shared = {.codes = {"scalar"}, .embeddings = "same"};
  EXPECT_NEAR(Value(PlanOf(kLlama38b, shared).codes[0], "times_smaller"), 18.4, 0.05);
}

TEST(Plan, SumsTheFamilyOfFourteenVariantsOfThe70B) {
  const Plan plan = PlanOf(kLlama270b, {.codes = {"scalar"}});
  // Signs 80 layers * 855638016 / 8; a scale of 4 bytes for each of 560 matrices; 2 * 32000 * 8192 * 2 bytes of
  // embedding and head; 161 norms of 8192.
  const double delta = 8'556'380'160 + 560 * 4 + 1'048'576'000 + 161 * 8192 * 2;
  const PlanRow& code = plan.codes[0];
  EXPECT_EQ(Value(code, "delta_bytes"), delta);
  EXPECT_NEAR(delta / 0x1p30, 8.95, 0.005);
  EXPECT_EQ(Value(plan.model, "base_bytes"), 137'953'296'384);
  EXPECT_EQ(Value(code, "family_bytes"), 137'953'296'384 + 14 * delta);
  EXPECT_NEAR(Value(code, "family_bytes") * 1e-9, 272, 0.5);
  EXPECT_NEAR(Value(code, "saved_share"), 0.86, 0.005);
  EXPECT_NEAR(Value(plan.copies[0], "family_bytes") * 1e-12, 1.93, 0.005);
  // Eight and four bits with a scale of 16 bits for 32 weights.
  EXPECT_NEAR(Value(plan.copies[1], "copy_bytes") / 137'953'296'384, 8.5 / 16, 1e-4);
  EXPECT_NEAR(Value(plan.copies[2], "copy_bytes") / 137'953'296'384, 4.5 / 16, 1e-4);
  EXPECT_NEAR(Value(code, "load_seconds_nvme_gen5"), 0.7, 0.05);
  EXPECT_NEAR(Value(code, "load_seconds_nvme_gen4"), 1.4, 0.05);
}

TEST(Plan, ReadsASixteenthMoreForEachDistinctVariant) {
  const PlanOptions options = {.n_variants = 8, .codes = {"scalar"}, .embeddings = "same"};
  const Plan plan = PlanOf(kLlama270b, options);
  // Of the matrices; the head is read once and without signs. Scales and norms are the rest.
  const double matrices = 68'451'041'280.0 * 2, head = 32000.0 * 8192 * 2;
  const double signs = matrices / 16 / (matrices + head);
  EXPECT_NEAR(Value(plan.codes[0], "token_ratio"), 1 + signs, 3e-4);
  EXPECT_NEAR(Value(plan.codes[0], "step_ratio"), 1 + 8 * signs, 8 * 3e-4);
  EXPECT_GT(Value(plan.codes[0], "token_ratio"), 1 + signs);
}

TEST(Plan, RowScalesCost16BitsARowWhereTheyAreFittedAndElse32) {
  for (const uint64_t d_in : {uint64_t{4096}, uint64_t{28672}}) {
    const WeightShape shape = {.d_out = 4096, .d_in = d_in};
    const uint64_t scalar = StoredBytes(ValueOrDie(ParsePlannedCode("scalar")), shape);
    EXPECT_EQ(StoredBytes(ValueOrDie(ParsePlannedCode("row")), shape) - (scalar - 4), 2 * 4096) << d_in;
    EXPECT_EQ(StoredBytes(ValueOrDie(ParsePlannedCode("row", kPlainScaleBytes)), shape) - (scalar - 4), 4 * 4096);
    EXPECT_EQ(scalar - 4, 4096 * d_in / 8) << d_in;
  }
}

TEST(Plan, FitsTheScalesOfAnEmbeddingThatIsTheHeadAlone) {
  const auto delta = [](const char* config, const char* code, bool is_fitted) {
    const PlanOptions options = {.codes = {code}, .is_fitted = is_fitted, .embeddings = "row"};
    return Value(PlanOf(config, options).codes[0], "delta_bytes");
  };
  // Llama-2-7B: embedding and head of 32000 rows each; a layer's matrices have 5 * 4096 + 2 * 11008 rows.
  const double rows = 32.0 * (5 * 4096 + 2 * 11008);
  EXPECT_EQ(delta(kLlama27b, "row", false) - delta(kLlama27b, "row", true), 2 * (rows + 32000));
  EXPECT_EQ(delta(kLlama27b, "raw", false), delta(kLlama27b, "raw", true)) << "nothing is fitted";
  // Qwen3-0.6B is tied.
  EXPECT_EQ(delta(kQwen306b, "scalar", false) - delta(kQwen306b, "scalar", true), 2 * 151'936);
}

TEST(Plan, KnowsTheBytesOfEveryCode) {
  const WeightShape shape = {.d_out = 100, .d_in = 50};  // rows of 7 bytes of signs
  const std::pair<const char*, uint64_t> stored[] = {{"scalar", 704},
                                                     {"row", 700 + 200},
                                                     {"column", 700 + 100},
                                                     {"rank1", 700 + 300},
                                                     {"planes3", 3 * (700 + 300)},
                                                     {"lowrank:4", 2 * 4 * 150},
                                                     {"lora:4", 2 * 4 * 150},
                                                     {"row+lowrank:2", 900 + 2 * 2 * 150},
                                                     {"int8", 100 * 58},
                                                     {"raw", 10000},
                                                     {"exact", 10000},
                                                     {"same", 0},
                                                     {"4bpw", 2500},
                                                     {"auto", 844}};
  for (const auto& [name, bytes] : stored) {
    const PlannedCode code = ValueOrDie(ParsePlannedCode(name));
    EXPECT_EQ(StoredBytes(code, shape), bytes) << name;
    EXPECT_GE(ResidentBytes(code, shape), bytes) << name;
  }
}

// What the codec stores and the kernels hold of a weight whose every element changed.
TEST(Plan, AgreesWithTheCodecForEveryCode) {
  constexpr size_t kRows = 100, kCols = 50;
  std::vector<Bf16> base, fine_tune;
  for (size_t i = 0; i < kRows * kCols; ++i) {
    base.push_back(ToBf16(static_cast<float>(RandomUnit(1, i) - 0.5)));
    fine_tune.push_back(ToBf16(ToFloat(base.back()) + 0.1F + static_cast<float>(RandomUnit(2, i)) * 0.2F));
  }
  const auto view = [&](const std::vector<Bf16>& values) {
    return TensorView{.dtype = DType::kBf16, .shape = {kRows, kCols}, .bytes = AsBytes(std::span<const Bf16>(values))};
  };
  const WeightPair pair = {.name = "w", .base = view(base), .fine_tune = view(fine_tune)};
  ThreadPool pool(1);
  Mat<float> x(80, kCols);
  for (size_t i = 0; i < 80 * kCols; ++i) x.Row(0)[i] = static_cast<float>(RandomUnit(3, i) - 0.5);
  const WeightInputs text = GatherInputs(pool, x.view(), x.view(), UINT64_MAX);
  for (const WeightInputs* inputs : {static_cast<const WeightInputs*>(nullptr), &text}) {
    for (const char* name :
         {"scalar", "row", "column", "rank1", "planes3", "lowrank:4", "row+lowrank:2", "int8", "raw"}) {
      const EncodedWeight encoded = ValueOrDie(Encode(pool, pair, ValueOrDie(ParseCode(name)), inputs));
      const PlannedCode planned = ValueOrDie(ParsePlannedCode(name, inputs ? kFittedScaleBytes : kPlainScaleBytes));
      const WeightShape shape = {.d_out = kRows, .d_in = kCols};
      EXPECT_EQ(StoredBytes(planned, shape), df::StoredBytes(encoded.delta)) << name;
      EXPECT_EQ(ResidentBytes(planned, shape), kernels::PackedBytes(encoded.delta)) << name;
    }
  }
}

TEST(Plan, RefusesCodesThatDoNotExist) {
  for (const char* name : {"", "one-bit", "planes1", "planes9", "planes22", "lowrank:0", "lowrank:", "lora:x",
                           "rank1+lowrank", "lowrank:2+rank1", "0bpw", "-1bpw", "nanbpw", "bpw", "row+raw"}) {
    ExpectRefusal(ParsePlannedCode(name), StatusCode::kInvalidArgument, {"unknown code", "rank1", "planes8"});
  }
}

// What the program itself holds in memory and on disk, for the bundled family.
TEST(Plan, AgreesWithAModelAndADeltaThatAreLoaded) {
  KernelContext context(1);
  const std::string base_directory = std::string(kDemo) + "zen-mini-base";
  const auto base = ValueOrDie(LoadBase(context, ValueOrDie(Checkpoint::Open(base_directory))));
  const Plan plan = ValueOrDie(MakePlan(base->config, {.codes = {"rank1"}, .embeddings = "planes2"}));
  EXPECT_EQ(Value(plan.model, "base_memory_bytes"), static_cast<double>(base->bytes));
  const auto delta = ValueOrDie(DeltaDirectory::Open(std::string(kDemo) + "deltas/zen-mini-german"));
  uint64_t tensors = 0;
  for (const auto& [name, tensor] : delta->tensors()) tensors += tensor.view.bytes.size();
  // As compress made it by default: fitted rank-1 signs, and two planes for an embedding that is the head.
  EXPECT_EQ(Value(plan.codes[0], "delta_bytes"), static_cast<double>(tensors));
  EXPECT_EQ(Value(plan.codes[0], "delta_memory_bytes"), static_cast<double>(ValueOrDie(DeltaBytes(*base, *delta))));
}

TEST(Plan, SaysWhatFitsAndWhatIsLeftForTheKvCache) {
  // 2 * 32 layers * 8 heads * 128 * 2 bytes a token; 4096 tokens are 256 blocks of 16.
  const uint64_t token = 131'072;
  PlanOptions options = {.n_variants = 4,
                         .codes = {"scalar"},
                         .memory_bytes = 40'000'000'000,
                         .reserve_bytes = 1'000'000'000,
                         .context_tokens = 4090,
                         .n_sequences = 2};
  const Plan plan = PlanOf(kLlama38b, options);
  EXPECT_EQ(Value(plan.model, "kv_bytes_per_token"), token);
  EXPECT_EQ(Value(plan.model, "kv_needed_bytes"), 2.0 * 4096 * token);
  const double base = Value(plan.model, "base_memory_bytes"), delta = Value(plan.codes[0], "delta_memory_bytes");
  const double fit = Value(plan.codes[0], "fit_variants"), left = Value(plan.codes[0], "kv_left_tokens");
  const double room = 39e9 - base;
  EXPECT_LE(fit * delta + 2.0 * 4096 * token, room);
  EXPECT_GT((fit + 1) * delta + 2.0 * 4096 * token, room);
  EXPECT_LE(4 * delta + left * token, room);
  EXPECT_GT(4 * delta + (left + 16) * token, room);
  EXPECT_EQ(static_cast<uint64_t>(left) % 16, 0);
  EXPECT_EQ(Value(plan.copies[0], "fit_variants"), 2);  // 16.06 GB each
  options.memory_bytes = 10'000'000'000;                // less than the base
  const Plan none = PlanOf(kLlama38b, options);
  EXPECT_EQ(Value(none.codes[0], "fit_variants"), 0);
  EXPECT_EQ(Value(none.codes[0], "kv_left_tokens"), 0);
  EXPECT_EQ(Value(none.copies[2], "fit_variants"), 1);
}

TEST(Plan, CountsEveryStoredBitOfAutoAndNothingElse) {
  const Plan plan = PlanOf(kQwen306b, {.codes = {"auto", "2bpw"}});
  EXPECT_NEAR(Value(plan.codes[0], "bits_per_weight"), 1.35, 1e-5);
  EXPECT_NEAR(Value(plan.codes[1], "delta_bytes"), 2 * 596'049'920 / 8.0, 100);
}

TEST(Plan, AnAdapterTouchesTheMatricesAlone) {
  const Plan plan = PlanOf(kLlama27b, {.codes = {"lora:16"}});
  // Seven matrices a layer: four of 4096 x 4096, three of 11008 and 4096.
  EXPECT_EQ(Value(plan.codes[0], "delta_bytes"), 32.0 * 2 * 16 * (4 * 8192 + 3 * 15104));
}

TEST(Plan, GivesEveryFigureAFormula) {
  const Json json = ToJson(PlanOf(kQwen306b, {.memory_bytes = 8'000'000'000}));
  size_t n_figures = 0;
  const auto check = [&n_figures](const Json& row) {
    for (const auto& [name, figure] : row["figures"].items()) {
      EXPECT_FALSE(figure["formula"].get<std::string>().empty()) << name;
      EXPECT_TRUE(figure["value"].is_number()) << name;
      ++n_figures;
    }
  };
  check(json["model"]);
  for (const Json& row : json["codes"]) check(row);
  for (const Json& row : json["copies"]) check(row);
  EXPECT_GT(n_figures, 100U);
}

TEST(Plan, RefusesNumbersThatMakeNoSense) {
  const ModelConfig config = ConfigOf(kQwen306b);
  ExpectRefusal(MakePlan(config, {.n_variants = 0}), StatusCode::kInvalidArgument, {"variants"});
  ExpectRefusal(MakePlan(config, {.n_variants = UINT64_MAX}), StatusCode::kInvalidArgument, {"variants"});
  ExpectRefusal(MakePlan(config, {.context_tokens = 0}), StatusCode::kInvalidArgument, {"context"});
  ExpectRefusal(MakePlan(config, {.context_tokens = 1 << 20, .n_sequences = UINT64_MAX}), StatusCode::kInvalidArgument,
                {"sequences"});
  ExpectRefusal(MakePlan(config, {.media = {{"disk", 0, ""}}}), StatusCode::kInvalidArgument, {"disk"});
  ExpectRefusal(MakePlan(config, {.embeddings = "no"}), StatusCode::kInvalidArgument, {"no"});
}

}  // namespace
}  // namespace df::tools
