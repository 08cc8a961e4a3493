#include "merge/merger.h"

#include <cmath>

#include "base/json.h"
#include "codec/compressor.h"
#include "codec/materialize.h"
#include "merge/models_fixture.h"
#include "testing/process_memory.h"

namespace df::merge {
namespace {

using testing::ExpectRefusal;
using testing::MadeModel;
using testing::ValueOrDie;
using testing::WriteModel;

constexpr char kLinear[] = R"(
merge_method: linear
models:
  - {model: @ft0, parameters: {weight: 0.5}}
  - {model: @ft1, parameters: {weight: [0, 0.6]}}
  - {model: @ft2, parameters: {weight: 0.2}}
out_dtype: float32
)";

// By mergekit's rule: layer i of n stands at i / (n - 1), what comes before at 0, behind at 1.
double DepthOf(const std::string& name) {
  for (size_t layer = 0; layer < 3; ++layer) {
    if (name.find("layers." + std::to_string(layer) + ".") != std::string::npos) return static_cast<double>(layer) / 2;
  }
  return name == kEmbeddingName ? 0 : 1;
}

// An f32 result of an f64 sum of a few values below 1: half an ulp, and some roundings of the terms.
constexpr double kTolerance = 4e-7;

void ExpectNear(const Weights& got, const Weights& want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [name, values] : want) {
    ASSERT_EQ(got.at(name).size(), values.size()) << name;
    for (size_t i = 0; i < values.size(); ++i) ASSERT_NEAR(got.at(name)[i], values[i], tolerance) << name << " " << i;
  }
}

class MergerTest : public ModelsTest {
 protected:
  Weights LinearByHand() const {
    std::vector<Weights> models;
    for (const char* name : {"ft0", "ft1", "ft2"}) models.push_back(WeightsOf(Sub(name)));
    Weights want;
    for (const auto& [name, values] : models[0]) {
      const double middle = 0.6 * DepthOf(name), sum = 0.7 + middle;
      for (size_t i = 0; i < values.size(); ++i) {
        want[name].push_back((0.5 * values[i] + middle * models[1].at(name)[i] + 0.2 * models[2].at(name)[i]) / sum);
      }
    }
    return want;
  }
};

TEST_F(MergerTest, AWeightedMeanOverWholeCheckpointsIsThatOfTheirValues) {
  const MergeReport report = ValueOrDie(Run(Read(kLinear)));
  ExpectNear(WeightsOf(Sub("out")), LinearByHand(), kTolerance);
  EXPECT_EQ(report.tensors.size(), ListSlots(ValueOrDie(LoadModelConfig(Sub("base"))), true).size());
  EXPECT_EQ(report.model_names, (std::vector<std::string>{"ft0", "ft1", "ft2"}));
  EXPECT_EQ(report.tensors[0].report.task_squares.size(), 3U);
  EXPECT_EQ(Left(), "");
  DF_EXPECT_OK(Bind(*ValueOrDie(Checkpoint::Open(Sub("out")))));
}

TEST_F(MergerTest, BytesDoNotDependOnThreadsShardsOrTheOrderOfSteps) {
  const Recipe recipe = Read(kLinear);
  DF_ASSERT_OK(Run(recipe, {}, 1));
  const auto files = FilesOf(Sub("out"));
  DF_ASSERT_OK(Run(recipe, {.replace = true, .step_bytes = 0}, 3));
  EXPECT_EQ(FilesOf(Sub("out")), files);
  const Weights weights = WeightsOf(Sub("out"));
  const MergeReport report = ValueOrDie(Run(recipe, {.max_shard_bytes = 4000, .replace = true}));
  EXPECT_GT(report.n_shards, 3U);
  EXPECT_EQ(WeightsOf(Sub("out")), weights);
}

TEST_F(MergerTest, EveryMethodRunsOverAWholeModel) {
  for (const Method& method : Methods()) {
    SCOPED_TRACE(std::string(method.name));
    std::string yaml = "merge_method: " + std::string(method.name) + "\nbase_model: @base\nmodels: [{model: @ft0}";
    yaml += method.max_models == 2 ? "]\n" : ", {model: @ft1}]\n";
    yaml += "parameters: {";
    for (const Parameter& parameter : method.parameters) {
      if (parameter.name == "energy" || parameter.name == "effective_rank") continue;
      const std::string value = parameter.name == "density" ? "0.5"
                                : parameter.name == "rank"  ? "2"
                                : parameter.name == "t"     ? "0.3"
                                                            : "";
      if (parameter.is_required || !value.empty())
        yaml += std::string(parameter.name) + ": " + (value.empty() ? "0.5" : value) + ", ";
    }
    const MergeReport report = ValueOrDie(Run(Read(yaml + "int8_mask: true}\n"), {.replace = true}));
    EXPECT_GT(report.ResultNorm(), 0);
    const Json json = ToJson(report);
    EXPECT_EQ(json["tensors"].size(), report.tensors.size());
    EXPECT_EQ(json.contains("scales") ? json["scales"].size() : 0U, method.has_second_pass ? 2U : 0U);
    const std::string card = FilesOf(Sub("out")).at("README.md");
    for (const std::string word : {"base_model_relation: merge", "\"ft0\"", "merge_method:"}) {
      EXPECT_NE(card.find(word), std::string::npos) << card;
    }
    EXPECT_EQ(card.find(directory_.path()), std::string::npos) << "a card holds no paths";
  }
}

// |W - W_b| = mean |tau_i| over the whole model is what the second pass is for.
TEST_F(MergerTest, OpcmKeepsTheMeanNormOverAllTensors) {
  const Recipe recipe = Read(
      "merge_method: opcm\nbase_model: @base\nmodels: [{model: @ft0}, {model: @ft1}, {model: @ft2}]\nout_dtype: "
      "float32\n");
  const MergeReport report = ValueOrDie(Run(recipe));
  const std::vector<double> norms = report.TaskNorms();
  ASSERT_EQ(norms.size(), 3U);
  EXPECT_NEAR(report.ResultNorm(), (norms[0] + norms[1] + norms[2]) / 3, 1e-5 * norms[0]);
  const Weights base = WeightsOf(Sub("base")), out = WeightsOf(Sub("out"));
  double sum = 0;
  for (const auto& [name, values] : base) {
    for (size_t i = 0; i < values.size(); ++i) sum += std::pow(out.at(name)[i] - values[i], 2);
  }
  EXPECT_NEAR(std::sqrt(sum), report.ResultNorm(), 1e-5 * norms[0]);
}

TEST_F(MergerTest, StoresAsTheBaseDoesOrAsAsked) {
  const std::string models = "models: [{model: @ft0}, {model: @ft1}]\nparameters: {weight: 1}\nmerge_method: linear\n";
  DF_ASSERT_OK(Run(Read(models)));
  const auto stored = [&] { return ValueOrDie(Checkpoint::Open(Sub("out")))->FindOrNull(kFinalNormName)->view.dtype; };
  EXPECT_EQ(stored(), DType::kBf16);
  DF_ASSERT_OK(Run(Read(models + "dtype: float16\n"), {.replace = true}));
  EXPECT_EQ(stored(), DType::kF16);
  const Json config = ValueOrDie(ReadJsonFile(Sub("out") + "/config.json"));
  EXPECT_EQ(config["torch_dtype"], "float16");
  DF_ASSERT_OK(Run(Read(models + "dtype: float16\nout_dtype: float32\n"), {.replace = true}));
  EXPECT_EQ(stored(), DType::kF32);
}

TEST_F(MergerTest, NamesTheTensorThatOverflowsItsDType) {
  const Recipe recipe = Read(
      "models: [{model: @ft0}]\nparameters: {weight: 900000, normalize: false}\nmerge_method: linear\nout_dtype: "
      "float16\n");
  ExpectRefusal(Run(recipe), StatusCode::kFailedPrecondition, {kEmbeddingName, "F16"});
  EXPECT_FALSE(std::filesystem::exists(Sub("out")));
}

TEST_F(MergerTest, AnUntiedModelUntiesTheMerge) {
  MadeModel untied = FineTune(1);
  untied.tied = false;
  untied.stores_head = true;
  WriteModel(untied, Sub("ft1"));
  const Recipe recipe = Read(
      "models: [{model: @ft0}, {model: @ft1}]\nparameters: {weight: 1}\nmerge_method: linear\nout_dtype: float32\n");
  const MergeReport report = ValueOrDie(Run(recipe));
  EXPECT_FALSE(report.tied);
  EXPECT_EQ(ValueOrDie(ReadJsonFile(Sub("out") + "/config.json"))["tie_word_embeddings"], false);
  const Weights a = WeightsOf(Sub("ft0")), b = WeightsOf(Sub("ft1")), out = WeightsOf(Sub("out"));
  const Values &embedding = a.at(kEmbeddingName), &head = b.at(kHeadName);
  for (size_t i = 0; i < head.size(); ++i) {
    ASSERT_NEAR(out.at(kHeadName)[i], (embedding[i] + head[i]) / 2, kTolerance);
  }
}

// A delta or an adapter counts as the full checkpoint that it stands for.
TEST_F(MergerTest, ADeltaMergesAsItsFullCheckpoint) {
  ThreadPool pool(2);
  const auto base = ValueOrDie(Checkpoint::Open(Sub("base"))), tuned = ValueOrDie(Checkpoint::Open(Sub("ft0")));
  DF_ASSERT_OK(Compress(pool, *base, *tuned, Sub("delta"), {.matrices = ValueOrDie(ParseCode("rank1"))}));
  DF_ASSERT_OK(Materialize(pool, *base, Sub("delta"), Sub("full"), {.dtype = DType::kF32}));
  const std::string head =
      "merge_method: task_arithmetic\nbase_model: @base\nparameters: {weight: 0.5}\nout_dtype: float32\n";
  DF_ASSERT_OK(Run(Read(head + "models: [{model: @full}, {model: @ft1}]\n")));
  const Weights want = WeightsOf(Sub("out"));
  const MergeReport report =
      ValueOrDie(Run(Read(head + "models: [{model: @delta}, {model: @ft1}]\n"), {.replace = true}));
  EXPECT_EQ(WeightsOf(Sub("out")), want);
  EXPECT_EQ(report.model_names[0], "delta");
}

TEST_F(MergerTest, RefusesWhatDoesNotFitByName) {
  const std::string tail = "parameters: {weight: 1}\nmerge_method: linear\n";
  MadeModel wide = FineTune(0);
  wide.d_ff = 32;
  WriteModel(wide, Sub("wide"));
  ExpectRefusal(Run(Read("models: [{model: @ft0}, {model: @wide}]\n" + tail)), StatusCode::kFailedPrecondition,
                {"wide", "ft0", "intermediate_size is 32"});
  ExpectRefusal(Run(Read("models: [{model: @ft0}, {model: @nobody}]\n" + tail)), StatusCode::kNotFound, {"nobody"});
  ThreadPool pool(1);
  const auto base = ValueOrDie(Checkpoint::Open(Sub("base"))), tuned = ValueOrDie(Checkpoint::Open(Sub("ft0")));
  DF_ASSERT_OK(Compress(pool, *base, *tuned, Sub("delta"), {.matrices = ValueOrDie(ParseCode("row"))}));
  ExpectRefusal(Run(Read("models: [{model: @ft0}, {model: @delta}]\n" + tail)), StatusCode::kFailedPrecondition,
                {"delta", "base_model"});
  MadeModel small = FineTune(0);
  small.vocab = 17;
  WriteModel(small, Sub("small"));
  ExpectRefusal(Run(Read("models: [{model: @ft0}, {model: @small}]\n" + tail)), StatusCode::kFailedPrecondition,
                {"small", "17 rows", "ft0", "20", "tokenizer"});
  WriteModel(FineTune(0), Sub("nan"), [](const std::string& name, std::vector<float>& values) {
    if (name == kFinalNormName) values[3] = NAN;
  });
  ExpectRefusal(Run(Read("models: [{model: @ft0}, {model: @nan}]\n" + tail)), StatusCode::kCorrupt,
                {kFinalNormName, "model nan", "NaN"});
  EXPECT_FALSE(std::filesystem::exists(Sub("out")));
  EXPECT_EQ(Left(), "");
}

TEST_F(MergerTest, AnInputThatIsCutShortWhileItIsMappedIsRefusedByName) {
  const Recipe recipe = Read(kLinear);
  const MergeSources sources = ValueOrDie(OpenSources(recipe));
  std::filesystem::resize_file(Sub("ft1") + "/model.safetensors", 0);
  ThreadPool pool(2);
  ExpectRefusal(MergeModels(pool, recipe, sources, Sub("out"), {}), StatusCode::kCorrupt, {"ft1", "truncated"});
  EXPECT_FALSE(std::filesystem::exists(Sub("out")));
  EXPECT_EQ(Left(), "");
}

// By every method, whether it looks at the base or not; a number would have to be looked up in the recipe.
TEST_F(MergerTest, NamesTheModelWhoseValuesAreNotFinite) {
  const auto spoil = [](const std::string& name, std::vector<float>& values) {
    if (name.find("q_proj") != std::string::npos || name == kFinalNormName) values[3] = INFINITY;
  };
  WriteModel(FineTune(0), Sub("spoilt"), spoil);
  WriteModel(base_, Sub("spoilt-base"), spoil);
  for (const Method& method : Methods()) {
    SCOPED_TRACE(std::string(method.name));
    std::string tail = "]\nmerge_method: " + std::string(method.name) + "\nparameters: {";
    for (const Parameter& parameter : method.parameters) {
      if (parameter.is_required) tail += std::string(parameter.name) + ": 0.5, ";
    }
    tail += method.one_of.empty() ? "}\n" : "energy: 0.5}\n";
    const std::string first = method.max_models == 2 ? "" : "{model: @ft0}, ";  // slerp's is the base
    ExpectRefusal(Run(Read("base_model: @base\nmodels: [" + first + "{model: @spoilt}" + tail)), StatusCode::kCorrupt,
                  {"tensor model.", " of model spoilt holds an infinity at element 3"});
    if (!method.needs_base) continue;
    ExpectRefusal(Run(Read("base_model: @spoilt-base\nmodels: [{model: @ft0}, {model: @ft1}" + tail)),
                  StatusCode::kCorrupt, {"of the base spoilt-base holds an infinity at element 3"});
  }
}

TEST_F(MergerTest, ADirectoryThatIsThereIsReplacedOnlyWhenAllowedAndNeverAnInput) {
  const std::string tail = "parameters: {weight: 1}\nmerge_method: linear\nmodels: [{model: @ft0}, {model: @out}]\n";
  WriteModel(FineTune(2), Sub("out"));
  ExpectRefusal(Run(Read(kLinear)), StatusCode::kFailedPrecondition, {"out", "exists"});
  ExpectRefusal(Run(Read(tail), {.replace = true}), StatusCode::kFailedPrecondition, {"out", "needed"});
}

TEST_F(MergerTest, ADryRunCountsWhatIsWrittenAndWritesNothing) {
  const Recipe recipe = Read(kLinear);
  const MergeSources sources = ValueOrDie(OpenSources(recipe));
  ThreadPool pool(2);
  const MergeEstimate estimate = ValueOrDie(EstimateMerge(pool, recipe, sources, kMaxShardBytes));
  EXPECT_FALSE(std::filesystem::exists(Sub("out")));
  EXPECT_GT(estimate.seconds, 0);
  const MergeReport report = ValueOrDie(Run(recipe));
  EXPECT_EQ(estimate.written_bytes, report.bytes);
  EXPECT_EQ(estimate.read_bytes, report.read_bytes);
  uint64_t stored = 0;
  for (const auto& [name, values] : WeightsOf(Sub("out"))) stored += values.size() * sizeof(float);
  EXPECT_EQ(stored, report.bytes);
}

class MergerSlow : public ModelsTest {};

// Of a model twenty times as large, no more than a tensor of it at a time.
TEST_F(MergerSlow, HoldsNoMoreThanThePlanSays) {
  if (testing::kSanitized) GTEST_SKIP();
  MadeModel large{.d_model = 512, .d_ff = 1536, .n_layers = 6, .vocab = 1000};
  WriteModel(large, Sub("base"));
  for (size_t i = 0; i < 2; ++i) {
    large.change = 0.1;
    large.change_seed = i + 1;
    WriteModel(large, Sub("ft" + std::to_string(i)));
  }
  const std::string models = "base_model: @base\nmodels: [{model: @ft0}, {model: @ft1}]\n";
  for (const std::string method :
       {"task_arithmetic\nparameters: {weight: 0.5}", "ties\nparameters: {weight: 0.5, density: 0.3}",
        "svd_average\nparameters: {rank: 4}", "opcm"}) {
    const Recipe recipe = Read(models + "merge_method: " + method + "\n");
    const MergeSources sources = ValueOrDie(OpenSources(recipe));
    const MergePlan plan = ValueOrDie(PlanMerge(recipe, sources, kMaxShardBytes));
    ThreadPool pool(2);
    testing::ResetPeak();
    const size_t before = testing::StatusBytes("RssAnon");
    size_t most = 0;
    const MergerOptions options{.replace = true, .on_progress = [&](const StreamProgress&) {
                                  most = std::max(most, testing::StatusBytes("RssAnon"));
                                  return true;
                                }};
    DF_ASSERT_OK(MergeModels(pool, recipe, sources, Sub("out"), options));
    // Beside it: BLAS's own buffers, blocks of the threads, and reports.
    EXPECT_LE(most, before + plan.memory_bytes + (size_t{48} << 20)) << method;
    EXPECT_LT(plan.memory_bytes, plan.written_bytes) << method;
  }
}

}  // namespace
}  // namespace df::merge
