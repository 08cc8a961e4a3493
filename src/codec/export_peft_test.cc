#include "codec/export_peft.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "base/json.h"
#include "codec/compressor.h"
#include "codec/materialize.h"
#include "testing/made_checkpoint.h"
#include "testing/refusal.h"

namespace df {
namespace {

using testing::ExpectRefusal;
using testing::Floats;
using testing::MadeModel;
using testing::TemporaryDirectory;
using testing::ValueOrDie;
using testing::WriteModel;

class ExportTest : public ::testing::Test {
 protected:
  void Write(const MadeModel& base, const MadeModel& fine_tune, const std::string& code,
             const std::string& vocabulary = "exact",
             const std::function<void(const std::string&, std::vector<float>&)>& edit = {}) {
    WriteModel(base, directory_.Sub("base"));
    WriteModel(fine_tune, directory_.Sub("fine-tune"), edit);
    base_ = ValueOrDie(Checkpoint::Open(directory_.Sub("base")));
    const auto changed = ValueOrDie(Checkpoint::Open(directory_.Sub("fine-tune")));
    CompressOptions options;
    options.matrices = ValueOrDie(ParseCode(code));
    options.embeddings = options.head = ValueOrDie(ParseCode(vocabulary));
    options.replace = true;
    DF_ASSERT_OK(Compress(pool_, *base_, *changed, directory_.Sub("delta"), options));
  }
  Result<ExportReport> Export(size_t rank = 0) {
    return ExportPeft(pool_, *base_, directory_.Sub("delta"), directory_.Sub("adapter"),
                      {.base_name = "base", .rank = rank, .replace = true});
  }
  std::shared_ptr<const Checkpoint> Full(const std::string& variant) {
    const std::string target = directory_.Sub(variant + "-full");
    DF_EXPECT_OK(Materialize(pool_, *base_, directory_.Sub(variant), target, {.dtype = DType::kF32, .replace = true}));
    return ValueOrDie(Checkpoint::Open(target));
  }
  void ExpectTheSameModel() {
    const auto delta = Full("delta"), adapter = Full("adapter");
    EXPECT_EQ(adapter->names(), delta->names());
    EXPECT_EQ(adapter->config().tied_head, delta->config().tied_head);
    for (const std::string& name : delta->names()) {
      const StoredTensor* found = adapter->FindOrNull(name);
      ASSERT_NE(found, nullptr) << name;
      EXPECT_EQ(Floats(found->view), Floats(delta->FindOrNull(name)->view)) << name;
    }
  }

  TemporaryDirectory directory_;
  ThreadPool pool_{2};
  std::shared_ptr<const Checkpoint> base_;
};

TEST_F(ExportTest, AnAdapterOfLowRanksIsTheSameModelBitForBit) {
  for (const bool tied : {true, false}) {
    const MadeModel base{.tied = tied, .stores_head = !tied};
    MadeModel changed = base;
    changed.change = 0.1;
    changed.unchanged = {{"model.layers.1.mlp.up_proj.weight", true}};
    Write(base, changed, "lowrank:4");
    const ExportReport report = ValueOrDie(Export());
    EXPECT_EQ(report.n_factors, 13U);
    EXPECT_EQ(report.largest_rank, 4U);
    EXPECT_TRUE(report.approximated.empty());
    ExpectTheSameModel();
  }
}

// Whatever base and fine-tune say about tying: embedding and head are the fine-tune's, and tied where both say so.
TEST_F(ExportTest, KeepsTheHeadThroughEveryChangeOfTying) {
  struct HeadCase {
    const char* what;
    bool base_tied, tied, stores_head;
    std::map<std::string, bool> unchanged;
    bool stays_tied;
  };
  const std::vector<HeadCase> cases = {
      {"both tied", true, true, false, {}, true},
      {"both tied, same embedding", true, true, false, {{kEmbeddingName, true}}, true},
      {"both untied", false, false, true, {}, false},
      {"untied by the fine-tune", true, false, true, {}, false},
      {"tied by the fine-tune", false, true, false, {}, false},
      {"tied by the fine-tune, same embedding", false, true, false, {{kEmbeddingName, true}}, false},
      {"config tied, the fine-tune stores a head", true, true, true, {}, false},
  };
  for (const HeadCase& c : cases) {
    Write({.tied = c.base_tied, .stores_head = !c.base_tied},
          {.tied = c.tied, .stores_head = c.stores_head, .change = 0.1, .unchanged = c.unchanged}, "lowrank:4");
    DF_ASSERT_OK(Export());
    const auto fine_tune = ValueOrDie(Checkpoint::Open(directory_.Sub("fine-tune")));
    const auto full = Full("adapter");
    EXPECT_EQ(full->config().tied_head, c.stays_tied) << c.what;
    EXPECT_EQ(full->FindOrNull(kHeadName) == nullptr, c.stays_tied) << c.what;
    EXPECT_EQ(Floats(full->FindOrNull(kEmbeddingName)->view), Floats(fine_tune->FindOrNull(kEmbeddingName)->view))
        << c.what;
    if (c.stays_tied) continue;
    EXPECT_EQ(Floats(full->FindOrNull(kHeadName)->view),
              Floats(fine_tune->FindOrNull(c.stores_head ? kHeadName : kEmbeddingName)->view))
        << c.what;
  }
}

// Layer 0 gets a change of rank 1, layer 1 of rank 3; a norm, the embedding and a whole matrix change as well.
void Plant(const std::string& name, std::vector<float>& values) {
  const size_t rank = name.starts_with("model.layers.0.") ? 1 : 3;
  if (!name.ends_with("proj.weight") || name == "model.layers.1.mlp.gate_proj.weight") {
    for (size_t i = 0; i < values.size(); ++i) values[i] += 0.25F * static_cast<float>(i % 3);
    return;
  }
  const size_t d_in = name.ends_with("down_proj.weight") ? 96 : 64;
  for (size_t i = 0; i < values.size(); ++i) {
    for (size_t k = 0; k < rank; ++k) {
      values[i] += 0.5F * static_cast<float>(std::cos(static_cast<double>((k + 1) * (i / d_in)))) *
                   static_cast<float>(std::sin(static_cast<double>((k + 2) * (i % d_in))));
    }
  }
}

TEST_F(ExportTest, KeepsEachMatrixsOwnRankAndSavesTheRestInFull) {
  const MadeModel model{.d_model = 64, .d_ff = 96};
  Write(model, model, "lowrank", "exact", Plant);
  const ExportReport report = ValueOrDie(Export());
  EXPECT_EQ(report.largest_rank, 3U);
  EXPECT_GE(report.n_factors, 13U);
  const Json config = ValueOrDie(ReadJsonFile(directory_.Sub("adapter") + "/adapter_config.json"));
  EXPECT_EQ(config.at("alpha_pattern"), config.at("rank_pattern"));
  EXPECT_EQ(config.at("rank_pattern").at("model\\.layers\\.(0)\\.mlp\\.up_proj"), 1);
  EXPECT_EQ(config.at("rank_pattern").at("model\\.layers\\.(1)\\.mlp\\.up_proj"), 3);
  ExpectTheSameModel();
}

TEST_F(ExportTest, RefusesSignsOrApproximatesThemAndSaysHowFar) {
  Write({}, {.change = 0.1}, "rank1");
  ExpectRefusal(Export(), StatusCode::kFailedPrecondition, {"model.layers.0", "sign rank-1", "--rank"});
  EXPECT_FALSE(std::filesystem::exists(directory_.Sub("adapter")));
  const ExportReport report = ValueOrDie(Export(6));
  EXPECT_EQ(report.approximated.size(), 14U);
  const auto delta = Full("delta"), adapter = Full("adapter");
  for (const ApproximatedWeight& weight : report.approximated) {
    const std::vector<float> base = Floats(base_->FindOrNull(weight.name)->view);
    const std::vector<float> want = Floats(delta->FindOrNull(weight.name)->view);
    const std::vector<float> got = Floats(adapter->FindOrNull(weight.name)->view);
    double error = 0, difference = 0;
    for (size_t i = 0; i < base.size(); ++i) {
      error += std::pow(static_cast<double>(got[i]) - static_cast<double>(want[i]), 2);
      difference += std::pow(static_cast<double>(want[i]) - static_cast<double>(base[i]), 2);
    }
    EXPECT_NEAR(std::sqrt(error / difference), weight.relative_error, 1e-4) << weight.name;
    EXPECT_GT(weight.relative_error, 0.1);
  }
}

TEST_F(ExportTest, SaysWhenThereIsNothingToExport) {
  Write({}, {}, "lowrank:4");
  ExpectRefusal(Export(), StatusCode::kFailedPrecondition, {"no matrix of low rank"});
}

}  // namespace
}  // namespace df
