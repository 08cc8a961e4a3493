// Small models on disk and what a merge of them should be, in f64.
#ifndef DELTAFOLD_MERGE_MODELS_FIXTURE_H_
#define DELTAFOLD_MERGE_MODELS_FIXTURE_H_

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "merge/merger.h"
#include "testing/made_checkpoint.h"
#include "testing/refusal.h"

namespace df::merge {

using Values = std::vector<double>;
using Weights = std::map<std::string, Values>;

inline Weights WeightsOf(const std::string& directory) {
  const auto checkpoint = testing::ValueOrDie(Checkpoint::Open(directory));
  Weights weights;
  for (const std::string& name : checkpoint->names()) {
    for (const float value : testing::Floats(checkpoint->FindOrNull(name)->view)) {
      weights[name].push_back(static_cast<double>(value));
    }
  }
  return weights;
}

// Name -> content of all files below `directory`.
inline std::map<std::string, std::string> FilesOf(const std::string& directory) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    if (!entry.is_regular_file()) continue;
    files[std::filesystem::relative(entry.path(), directory)] =
        testing::ValueOrDie(ReadFileBounded(entry.path().string(), size_t{1} << 30));
  }
  return files;
}

// A base and three fine-tunes under names of their own.
class ModelsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    testing::WriteModel(base_, Sub("base"));
    for (size_t i = 0; i < 3; ++i) testing::WriteModel(FineTune(i), Sub("ft" + std::to_string(i)));
  }

  testing::MadeModel FineTune(size_t i) const {
    testing::MadeModel model = base_;
    model.change = 0.1;
    model.change_seed = 10 + i;
    return model;
  }

  std::string Sub(const std::string& name) const { return directory_.Sub(name); }

  // The text with @ for the models' directory.
  Recipe Read(std::string yaml) const {
    for (size_t at = yaml.find('@'); at != std::string::npos; at = yaml.find('@')) {
      yaml.replace(at, 1, directory_.path() + "/");
    }
    return testing::ValueOrDie(ParseRecipe(yaml));
  }

  Result<MergeReport> Run(const Recipe& recipe, const MergerOptions& options = {}, size_t n_threads = 2) const {
    DF_ASSIGN_OR_RETURN(const MergeSources sources, OpenSources(recipe));
    ThreadPool pool(n_threads);
    return MergeModels(pool, recipe, sources, Sub("out"), options);
  }

  // The directory that a run left; "" when there is none.
  std::string Left() const {
    std::string left;
    for (const auto& entry : std::filesystem::directory_iterator(directory_.path())) {
      if (entry.path().filename().string().starts_with("out.tmp-")) left = entry.path().string();
    }
    return left;
  }

  testing::MadeModel base_{.d_model = 16, .d_ff = 24, .n_layers = 3, .vocab = 20};
  testing::TemporaryDirectory directory_;
};

}  // namespace df::merge

#endif  // DELTAFOLD_MERGE_MODELS_FIXTURE_H_
