// Whole checkpoints against the reference: computed in f64 and rounded once (tests/golden/README.md).
#include <cmath>

#include "merge/models_fixture.h"

namespace df::merge {
namespace {

using testing::ValueOrDie;

struct Golden {
  const char* name;
  std::string method, parameters;
  size_t n_models = 3;
};

std::vector<Golden> Goldens(bool all) {
  std::vector<Golden> goldens = {{"linear", "linear", "{}"},
                                 {"ties", "ties", "{weight: 1, density: 0.5}"},
                                 {"monosoup_energy", "monosoup", "{energy: 0.8}", 1}};
  if (!all) return goldens;
  goldens.push_back({"slerp", "slerp", "{t: 0.3}", 2});
  goldens.push_back({"monosoup_entropy", "monosoup", "{effective_rank: true}", 1});
  goldens.push_back({"task_arithmetic", "task_arithmetic", "{weight: 1, lambda: 0.4}"});
  goldens.push_back({"svd_average_r4", "svd_average", "{rank: 4}"});
  goldens.push_back({"opcm", "opcm", "{alpha: 0.5}"});
  return goldens;
}

Weights Stored(const std::string& path) {
  const auto file = ValueOrDie(SafetensorsFile::Open(path));
  Weights weights;
  for (const NamedTensor& tensor : file->tensors()) {
    for (const float value : testing::Floats(tensor.view)) weights[tensor.name].push_back(static_cast<double>(value));
  }
  return weights;
}

double Norm(const Values& values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return std::sqrt(sum);
}

class MergerGolden : public ::testing::Test {
 protected:
  void Check(const std::string& models, const std::string& merged, const Golden& golden) {
    SCOPED_TRACE(merged + " " + golden.name);
    static constexpr double kWeights[] = {0.5, 0.3, 0.2};
    const bool is_linear = golden.method == "linear", is_slerp = golden.method == "slerp";
    std::string yaml =
        "merge_method: " + golden.method + "\nparameters: " + golden.parameters + "\nout_dtype: float32\n";
    if (!is_linear && !is_slerp) yaml += "base_model: " + models + "/base\n";
    yaml += "models:\n";
    for (size_t i = 0; i < golden.n_models; ++i) {
      yaml += "  - model: " + models + "/ft" + std::to_string(i) + "\n";
      if (is_linear) yaml += "    parameters: {weight: " + std::to_string(kWeights[i]) + "}\n";
    }
    const Recipe recipe = ValueOrDie(ParseRecipe(yaml));
    const MergeSources sources = ValueOrDie(OpenSources(recipe));
    ThreadPool pool(2);
    DF_ASSERT_OK(MergeModels(pool, recipe, sources, directory_.Sub("out"), {.replace = true}));
    const Weights got = WeightsOf(directory_.Sub("out"));
    const Weights want = Stored(merged + "/" + golden.name + ".safetensors");
    ASSERT_EQ(got.size(), want.size());
    for (const auto& [name, values] : want) {
      Values difference = got.at(name);
      ASSERT_EQ(difference.size(), values.size());
      for (size_t i = 0; i < values.size(); ++i) difference[i] -= values[i];
      // What an f32 result may be away from one in f64.
      EXPECT_LE(Norm(difference), 1e-6 * Norm(values)) << name;
    }
  }

  const std::string golden_ = std::string(DELTAFOLD_SOURCE_DIR) + "/tests/golden";
  testing::TemporaryDirectory directory_;
};

TEST_F(MergerGolden, EveryMethodOverCheckpointsOfFullRankDifferences) {
  const std::string dense = golden_ + "/merge/dense";
  for (const Golden& golden : Goldens(true)) Check(dense, dense + "/merged", golden);
}

TEST_F(MergerGolden, MethodsThatTakeDifferencesOfAnyRankOverOddSizes) {
  for (const Golden& golden : Goldens(false))
    Check(golden_ + "/deltas/llama-odd", golden_ + "/merge/llama-odd", golden);
}

}  // namespace
}  // namespace df::merge
