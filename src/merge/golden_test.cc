// Every method against the reference in f64 (tests/golden/README.md, "merge/").
#include <gtest/gtest.h>

#include <algorithm>

#include "format/safetensors.h"
#include "merge/merge_fixture.h"
#include "merge/opcm.h"

namespace df::merge {
namespace {

// What is asked of a merge: results in f32 of values up to 4, whose rounding alone is 2.4e-7.
constexpr double kTolerance = 1e-6;

std::shared_ptr<const SafetensorsFile> Open(const std::string& relative) {
  return testing::ValueOrDie(SafetensorsFile::Open(std::string(DELTAFOLD_SOURCE_DIR) + "/tests/golden/" + relative));
}

std::vector<float> Floats(const SafetensorsFile& file, const std::string& name) {
  const TensorView& view = *file.FindOrNull(name);
  std::vector<float> values(view.elements());
  ReadFloats(view, 0, values);
  return values;
}

double DoubleAt(const SafetensorsFile& file, const std::string& name, size_t i) {
  return LoadUnaligned<double>(file.FindOrNull(name)->bytes.data() + 8 * i);
}

struct Case {
  std::string method;
  Parameters parameters;
  size_t n_models = 3;  // the first so many
};

const std::map<std::string, Case>& Cases() {
  static const std::map<std::string, Case> cases = {
      {"linear", {"linear", {{"weight", {0.5, 0.3, 0.2}}}}},
      {"task_arithmetic", {"task_arithmetic", {{"weight", {1}}, {"lambda", {0.4}}}}},
      {"ties", {"ties", {{"weight", {1}}, {"density", {0.5}}}}},
      {"slerp", {"slerp", {{"t", {0.3}}}, 2}},
      {"svd_average_r2", {"svd_average", {{"rank", {2}}}}},
      {"svd_average_r4", {"svd_average", {{"rank", {4}}}}},
      {"monosoup_energy", {"monosoup", {{"energy", {0.8}}}, 1}},
      {"monosoup_entropy", {"monosoup", {{"effective_rank", {1}}}, 1}},
  };
  return cases;
}

void ExpectMonosoupParameters(const Report& report, const std::vector<float>& expected) {
  ASSERT_EQ(report.spectra.size(), 1U);
  ASSERT_TRUE(report.edit.has_value());
  // Where one value has everything, the reference counts the next, which is its rounding: that changes nothing.
  const size_t counted = expected[1] > 1 - 1e-7 && expected[0] == 2 ? 1 : 0;
  EXPECT_EQ(report.spectra[0].rank + counted, static_cast<size_t>(expected[0]));
  EXPECT_NEAR(report.spectra[0].energy, expected[1], 1e-6);
  EXPECT_NEAR(report.edit->rho, expected[2], 1e-6);
  EXPECT_NEAR(report.edit->low, expected[4], 1e-5);  // a root of 1 - P, which has P's absolute error
  EXPECT_NEAR(report.edit->high, expected[5], 1e-5);
}

class SmallGolden : public ::testing::TestWithParam<std::string> {
 protected:
  SmallGolden() : file_(Open("merge/small_" + GetParam() + ".safetensors")) {
    for (const char* name : {"base", "theta_0", "theta_1", "theta_2"}) {
      tensors_.emplace_back(file_->FindOrNull(name)->shape, Floats(*file_, name));
    }
  }
  TensorGroup Group(size_t n_models) const {
    TensorGroup group{.name = "w", .base = tensors_[0].view(), .is_linear = true};
    for (size_t i = 0; i < n_models; ++i) group.models.push_back(tensors_[1 + i].view());
    return group;
  }

  std::shared_ptr<const SafetensorsFile> file_;
  std::vector<Stored> tensors_;
};

TEST_P(SmallGolden, EveryMethodGivesTheReferencesMatrix) {
  for (const auto& [golden, the_case] : Cases()) {
    SCOPED_TRACE(golden);
    const Merged merged = MergeOrDie(the_case.method, Group(the_case.n_models), the_case.parameters);
    EXPECT_LT(LargestDistance(merged.values, Floats(*file_, golden)), kTolerance);
    if (the_case.method == "monosoup") ExpectMonosoupParameters(merged.report, Floats(*file_, golden + "_params"));
  }
}

TEST_P(SmallGolden, OpcmGivesTheReferencesMatrixAndScales) {
  const TensorGroup group = Group(3);
  const Merged sum = MergeOrDie("opcm", group);
  OpcmSums sums;
  sums.Add(sum.report);
  for (size_t t = 0; t < 3; ++t) EXPECT_NEAR(sums.Lambdas()[t], DoubleAt(*file_, "opcm_lambda", t), 1e-6);
  const Stored unscaled(group.base->shape, sum.values);
  std::vector<float> values(sum.values.size());
  ThreadPool pool(2);
  const auto keep = [&](size_t first, std::span<const float> got) {
    std::copy(got.begin(), got.end(), values.begin() + static_cast<ptrdiff_t>(first));
  };
  DF_ASSERT_OK(FinishOpcm(pool, "w", *group.base, unscaled.view(), sums.Scale(), keep));
  EXPECT_LT(LargestDistance(values, Floats(*file_, "opcm")), kTolerance);
}

INSTANTIATE_TEST_SUITE_P(Shapes, SmallGolden, ::testing::Values("12x8", "8x12", "9x9", "20x5"),
                         [](const auto& param) { return "Of" + param.param; });

// Whole checkpoints in BF16: base and three fine-tunes, and the folder of the results.
struct Set {
  Set(const std::string& checkpoints, std::string results_in) : results(std::move(results_in)) {
    for (const char* name : {"base", "ft0", "ft1", "ft2"}) {
      files.push_back(Open(checkpoints + "/" + name + "/model.safetensors"));
    }
  }
  TensorGroup Group(const std::string& name, size_t n_models) const {
    TensorGroup group{.name = name, .base = *files[0]->FindOrNull(name)};
    group.is_linear = name.ends_with("_proj.weight") || name == "lm_head.weight";
    for (size_t i = 0; i < n_models; ++i) group.models.push_back(*files[1 + i]->FindOrNull(name));
    return group;
  }
  std::vector<std::shared_ptr<const SafetensorsFile>> files;
  std::string results;
};

void ExpectCheckpoint(const Set& set, const std::string& golden) {
  SCOPED_TRACE(golden);
  const auto expected = Open(set.results + "/" + golden + ".safetensors");
  const auto parameters = Open(set.results + "/monosoup_params.safetensors");
  const Case& the_case = Cases().at(golden);
  for (const NamedTensor& tensor : set.files[0]->tensors()) {
    SCOPED_TRACE(tensor.name);
    const Merged merged = MergeOrDie(the_case.method, set.Group(tensor.name, the_case.n_models), the_case.parameters);
    EXPECT_LT(LargestDistance(merged.values, Floats(*expected, tensor.name)), kTolerance);
    if (the_case.method != "monosoup") continue;
    const std::string key = golden.substr(std::string("monosoup_").size()) + "." + tensor.name;
    if (parameters->FindOrNull(key) == nullptr) {
      EXPECT_EQ(merged.report.way, Way::kCopied);
    } else {
      ExpectMonosoupParameters(merged.report, Floats(*parameters, key));
    }
  }
}

TEST(MergeGolden, DenseCheckpointsAreTheReferences) {
  const Set set("merge/dense", "merge/dense/merged");
  for (const char* golden :
       {"linear", "task_arithmetic", "ties", "slerp", "svd_average_r4", "monosoup_energy", "monosoup_entropy"}) {
    ExpectCheckpoint(set, golden);
  }
}

// Fine-tunes of low rank with unchanged rows and matrices; most tensors have equal magnitudes at the cut of ties.
TEST(MergeGolden, CheckpointsWithUnchangedPartsAreTheReferences) {
  const Set set("deltas/llama-odd", "merge/llama-odd");
  for (const char* golden : {"linear", "ties", "monosoup_energy"}) ExpectCheckpoint(set, golden);
}

TEST(MergeGolden, OpcmScalesAWholeCheckpointAsTheReference) {
  const Set set("merge/dense", "merge/dense/merged");
  std::map<std::string, Merged> merged;
  OpcmSums sums;
  for (const NamedTensor& tensor : set.files[0]->tensors()) {
    merged[tensor.name] = MergeOrDie("opcm", set.Group(tensor.name, 3));
    sums.Add(merged[tensor.name].report);
  }
  EXPECT_NEAR(sums.Lambdas()[1], 1.4006707704232448, 1e-6);
  EXPECT_NEAR(sums.Lambdas()[2], 1.709053068704751, 1e-6);
  const auto expected = Open("merge/dense/merged/opcm.safetensors");
  ThreadPool pool(2);
  double changed = 0, mean_norm = 0;
  for (auto& [name, sum] : merged) {
    SCOPED_TRACE(name);
    const TensorGroup group = set.Group(name, 3);
    const Stored unscaled(group.base->shape, sum.values);
    std::vector<float> values(sum.values.size());
    const auto keep = [&](size_t first, std::span<const float> got) {
      std::copy(got.begin(), got.end(), values.begin() + static_cast<ptrdiff_t>(first));
    };
    const auto report = testing::ValueOrDie(FinishOpcm(pool, name, *group.base, unscaled.view(), sums.Scale(), keep));
    changed += report.result_squares;
    EXPECT_LT(LargestDistance(values, Floats(*expected, name)), kTolerance);
  }
  for (const double squares : sums.task_squares) mean_norm += std::sqrt(squares) / 3;
  EXPECT_NEAR(std::sqrt(changed), mean_norm, 1e-6 * mean_norm);  // the norm is that of a task vector
  EXPECT_EQ(merged["model.layers.0.self_attn.q_proj.weight"].report.blocks.back(), 7U);
  EXPECT_EQ(merged["lm_head.weight"].report.blocks.back(), 10U);
}

}  // namespace
}  // namespace df::merge
