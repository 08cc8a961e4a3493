// Compress with a calibration text: fitted codes, the same whatever the threads, better on the outputs.
#include <gtest/gtest.h>

#include <set>

#include "base/json.h"
#include "codec/compressor.h"
#include "codec/materialize.h"
#include "codec/verify.h"
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

class CalibratedCompress : public ::testing::Test {
 protected:
  void Write(MadeModel base, MadeModel fine_tune) {
    for (MadeModel* model : {&base, &fine_tune}) {
      model->d_model = 32;
      model->d_ff = 48;
    }
    WriteModel(base, directory_.Sub("base"));
    WriteModel(fine_tune, directory_.Sub("fine-tune"));
  }

  Result<CompressReport> Run(CompressOptions options, size_t n_threads = 2) {
    const auto base = ValueOrDie(Checkpoint::Open(directory_.Sub("base")));
    const auto fine_tune = ValueOrDie(Checkpoint::Open(directory_.Sub("fine-tune")));
    KernelContext context(n_threads);
    if (options.calibration) options.calibration->context = &context;
    options.replace = true;
    options.base_name = "base";
    options.model_name = "fine-tune";
    return Compress(context.pool, *base, *fine_tune, Delta(), options);
  }

  static Calibration Text() {
    Calibration calibration{.context = nullptr, .sequences = {}, .source = "a text"};
    for (size_t i = 0; i < 6; ++i) {
      std::vector<int32_t>& sequence = calibration.sequences.emplace_back();
      for (size_t t = 0; t < 40; ++t) sequence.push_back(static_cast<int32_t>(RandomBits(i, t) % 20));
    }
    return calibration;
  }
  std::string Delta() const { return directory_.Sub("delta"); }

  TemporaryDirectory directory_;
};

CompressOptions With(const char* code) {
  CompressOptions options;
  options.matrices = std::string_view(code) == "auto" ? std::nullopt : std::optional(ValueOrDie(ParseCode(code)));
  if (!options.matrices) options.embeddings = options.head = std::nullopt;
  return options;
}

TEST_F(CalibratedCompress, ReportsTheErrorOfTheOutputsWhichFallsWithRicherCodes) {
  Write({}, {.change = 0.3});
  double last = 1;
  for (const char* code : {"scalar", "row", "rank1", "rank1+lowrank:4", "planes2", "planes3"}) {
    CompressOptions options = With(code);
    options.calibration = Text();
    const CompressReport report = ValueOrDie(Run(options));
    EXPECT_EQ(report.calibration_tokens, 240U);
    ASSERT_TRUE(report.mean_output_error.has_value());
    EXPECT_LT(*report.mean_output_error, last) << code;
    last = *report.mean_output_error;
    for (const WeightReport& weight : report.weights) {
      EXPECT_EQ(weight.output_error.has_value(),
                weight.kind == SlotKind::kMatrix || weight.kind == SlotKind::kEmbedding)
          << weight.name;
    }
  }
  const Json config = ValueOrDie(ReadJsonFile(Delta() + "/delta_config.json"));
  EXPECT_EQ(config.at("codec").at("calibration").at("tokens"), 240);
  EXPECT_EQ(config.at("codec").at("calibration").at("source"), "a text");
  EXPECT_NEAR(config.at("quality").at("mean_output_error").get<double>(), last, 1e-6);
}

TEST_F(CalibratedCompress, WritesTheSameBytesWithAnyNumberOfThreads) {
  Write({}, {.change = 0.3});
  for (const char* code : {"rank1", "planes2", "auto"}) {
    std::set<std::string> models, configs;
    for (const size_t n_threads : {size_t{1}, size_t{2}, size_t{3}}) {
      CompressOptions options = With(code);
      options.calibration = Text();
      options.budget_may_grow = true;
      DF_ASSERT_OK(Run(options, n_threads));
      models.insert(ValueOrDie(ReadFileBounded(Delta() + "/delta_model.safetensors", size_t{1} << 30)));
      configs.insert(ValueOrDie(ReadFileBounded(Delta() + "/delta_config.json", size_t{1} << 30)));
    }
    EXPECT_EQ(models.size(), 1U) << code;
    EXPECT_EQ(configs.size(), 1U) << code;
  }
}

TEST_F(CalibratedCompress, IsReadBackAsItWasMeasured) {
  Write({}, {.change = 0.3});
  CompressOptions options = With("planes2+lowrank:2");
  options.calibration = Text();
  const CompressReport report = ValueOrDie(Run(options));
  ThreadPool pool(2);
  const auto base = ValueOrDie(Checkpoint::Open(directory_.Sub("base")));
  const auto fine_tune = ValueOrDie(Checkpoint::Open(directory_.Sub("fine-tune")));
  const VerifyReport verified = ValueOrDie(Verify(pool, *base, Delta(), fine_tune.get(), {}));
  ASSERT_EQ(verified.weights.size(), report.weights.size());
  for (size_t i = 0; i < report.weights.size(); ++i) {
    EXPECT_EQ(verified.weights[i].bytes, report.weights[i].bytes);
    EXPECT_NEAR(verified.weights[i].quality->relative_frobenius, report.weights[i].quality.relative_frobenius, 1e-5);
  }
}

TEST_F(CalibratedCompress, TakesGrownAndUntiedVocabularies) {
  Write({.tied = false, .stores_head = true}, {.vocab = 29, .tied = false, .stores_head = true, .change = 0.3});
  for (const char* embedding : {"exact", "rank1", "planes2"}) {
    CompressOptions options = With("rank1");
    options.embeddings = options.head = ValueOrDie(ParseCode(embedding));
    options.calibration = Text();
    options.calibration->sequences[0][0] = 28;
    const CompressReport report = ValueOrDie(Run(options));
    EXPECT_FALSE(report.weights.back().output_error.has_value()) << "a head that grew is not fitted";
  }
  Write({.tied = false, .stores_head = true}, {.tied = false, .stores_head = true, .change = 0.3});
  CompressOptions options = With("rank1");
  options.head = ValueOrDie(ParseCode("rank1"));
  options.calibration = Text();
  const CompressReport report = ValueOrDie(Run(options));
  EXPECT_TRUE(report.weights.back().output_error.has_value());
  EXPECT_LT(*report.weights.back().output_error, 0.7);
}

TEST_F(CalibratedCompress, AutoKeepsItsBytesAndStartsFromFittedSigns) {
  Write({}, {.change = 0.3});
  double last = 2;
  for (const double share : {0.3, 0.5, 1.0}) {
    CompressOptions options = With("auto");
    options.budget = {.unit = Budget::Unit::kShareOfModel, .value = share};
    options.calibration = Text();
    const CompressReport report = ValueOrDie(Run(options));
    EXPECT_LE(report.delta_bytes, options.budget.Bytes(0, report.full_bytes));
    EXPECT_LT(*report.mean_output_error, last);
    last = *report.mean_output_error;
    for (const WeightReport& weight : report.weights) {
      for (const Candidate& candidate : weight.candidates) {
        // Rank 0 is that of a fused adapter; another would fit the text and nothing else.
        EXPECT_TRUE(candidate.code.kind != CodeKind::kLowRank || candidate.code.rank == 0);
      }
    }
  }
}

TEST_F(CalibratedCompress, ABudgetThatMayGrowGivesTheSmallestCodes) {
  Write({}, {.change = 0.3});
  CompressOptions options = With("auto");
  options.calibration = Text();
  options.budget = {.unit = Budget::Unit::kBytes, .value = 10};
  ExpectRefusal(Run(options), StatusCode::kFailedPrecondition, {"10 are allowed"});
  options.budget_may_grow = true;
  DF_EXPECT_OK(Run(options));
}

TEST_F(CalibratedCompress, NeedsNoTextWhereNoCodeIsFitted) {
  Write({}, {.change = 0.3});
  CompressOptions options = With("exact");
  options.calibration = Text();
  options.calibration->sequences = {{99}};  // not of the vocabulary: not looked at
  EXPECT_EQ(ValueOrDie(Run(options)).calibration_tokens, 0U);
  options.matrices = Code{};
  ExpectRefusal(Run(options), StatusCode::kInvalidArgument, {"99"});
}

}  // namespace
}  // namespace df
