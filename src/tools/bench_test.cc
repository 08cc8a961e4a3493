// The benches themselves on models of a moment: that they measure, and that their reports hold together. What they
// measure here says nothing.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <set>

#include "base/json.h"
#include "kernels/target.h"
#include "testing/refusal.h"
#include "testing/status_matchers.h"
#include "testing/temporary_directory.h"
#include "tools/adapter_rows.h"
#include "tools/attention_rows.h"
#include "tools/bench_codec.h"
#include "tools/bench_merge.h"
#include "tools/bench_model.h"
#include "tools/element_rows.h"
#include "tools/head_rows.h"
#include "tools/linear_rows.h"
#include "tools/option_rows.h"
#include "tools/prefill_dtype_rows.h"
#include "tools/step_rows.h"
#include "tools/synthetic_shape.h"
#include "tools/synthetic_weights.h"
#include "tools/targets.h"

namespace df::tools {
namespace {

using testing::ExpectRefusal;
using testing::ValueOrDie;

ModelConfig ShapeConfig(const std::string& name) {
  return ValueOrDie(ParseModelConfig(ValueOrDie(SyntheticConfig(name))));
}

TEST(Synthetic, EveryShapeIsAModelWeCanServe) {
  for (const std::string& name : SyntheticShapeNames()) {
    const ModelConfig config = ShapeConfig(name);
    EXPECT_GT(SyntheticBaseBytes(config), 10 * SyntheticVariantBytes(config)) << name;
  }
  EXPECT_EQ(ValueOrDie(SyntheticConfig("llama-3-8b")), ValueOrDie(SyntheticConfig("llama-8b")));
  ExpectRefusal(SyntheticConfig("gpt-5"), StatusCode::kInvalidArgument, {"gpt-5", "qwen3-0.6b", "llama-8b"});
}

TEST(Synthetic, BytesAreTheRealModels) {
  // Parameters of the public checkpoints, embeddings once where tied.
  EXPECT_NEAR(static_cast<double>(SyntheticBaseBytes(ShapeConfig("qwen3-0.6b"))), 2 * 596e6, 2 * 1e6);
  EXPECT_NEAR(static_cast<double>(SyntheticBaseBytes(ShapeConfig("tinyllama-1.1b"))), 2 * 1100e6, 2 * 1e6);
  EXPECT_NEAR(static_cast<double>(SyntheticBaseBytes(ShapeConfig("llama-8b"))), 2 * 8030e6, 2 * 3e6);
}

TEST(Synthetic, PackedWeightsHavePaddingOfZeroAndValuesWithinTheBound) {
  KernelContext context(1);
  const kernels::PackedWeight weight = SyntheticWeight(context, 33, 7, 5);
  double sum = 0;
  for (size_t row = 0; row < 33; ++row) {
    for (size_t col = 0; col < 7; ++col) {
      EXPECT_LE(std::abs(weight.At(row, col)), kSyntheticBound);
      sum += std::abs(static_cast<double>(weight.At(row, col)));
    }
  }
  EXPECT_NEAR(sum / (33 * 7), kSyntheticBound / 2, kSyntheticBound / 8);
  for (size_t row = 0; row < 64; ++row) {
    EXPECT_EQ(weight.At(row, 7), 0.0F) << "the eighth column is padding";
    if (row >= 33) {
      EXPECT_EQ(weight.At(row, 0), 0.0F);
    }
  }
}

TEST(KernelBench, MeasuresEveryRowOnASmallMatrix) {
  if (kernels::IsScalarTarget()) GTEST_SKIP() << "the scalar target has no limits";
  KernelContext context(2);
  // Both halves rotate over 320 MB; a small matrix and two rounds keep that to a moment.
  LinearWorld world(context, {"512x1024", 512, 1024});
  const auto rows = MeasureLinearRows(world, {"gemv_bandwidth_share", "repack_share"}, 2);
  ASSERT_EQ(rows.size(), 3u);  // packing: base and signs
  for (const RowResult& row : rows) {
    EXPECT_EQ(row.samples.size(), 2u) << row.name;
    EXPECT_EQ(row.n_threads, 2u);
    EXPECT_GT(row.bytes_per_second, 0) << row.name;
    for (const double sample : row.samples) EXPECT_GT(sample, 0) << row.name;
  }
}

// Every row that the built-in table names, and none beside them, comes out of the families together.
TEST(KernelBenchSlow, TheTableHasARowForEveryMeasurement) {
  if (kernels::IsScalarTarget()) GTEST_SKIP() << "the scalar target has no limits";
  KernelContext context(2, {.batch_invariant = false});
  std::set<std::string> measured = {"non_matrix_share"};
  const auto keep = [&](const std::vector<RowResult>& rows) {
    for (const RowResult& row : rows) {
      measured.insert(row.name);
      if (!row.missing.empty()) continue;
      EXPECT_EQ(row.samples.size(), 1u) << row.name;
      for (const double sample : row.samples) EXPECT_GT(sample, 0) << row.name;
      EXPECT_TRUE(row.name.ends_with("error") || row.name.ends_with("outlier") ||
                  row.bytes_per_second + row.flops_per_second > 0)
          << row.name;
    }
  };
  LinearWorld world(context, {"512x1024", 512, 1024});
  keep(MeasureLinearRows(world, {}, 1));
  keep(MeasurePrefillDtypeRows(world, {}, 1));
  keep(MeasureAdapterRows(world, {}, 1));
  keep(MeasureOptionRows(world, {}, 1));
  keep(MeasureErrorRows(context, {}, 1));
  keep(MeasureAttentionRows(context,
                            {.name = "small",
                             .n_heads = 8,
                             .n_kv_heads = 2,
                             .head_dim = 64,
                             .decode_tokens = {512},
                             .prefill_tokens = {128},
                             .window = 32},
                            {}, 1));
  kernels::LinearWeight head;
  head.weight = SyntheticWeight(context, 4096, 512, 1);
  keep(MeasureHeadRows(context, head, "small", {}, 1));
  keep(MeasureElementRows(context, {.name = "small", .d_model = 512, .n_heads = 8, .head_dim = 64, .d_ff = 1024}, {},
                          1));
  std::set<std::string> named;
  for (const Target& target : ValueOrDie(ParseTargets(BuiltInTargetsText())).targets) named.insert(target.name);
  EXPECT_EQ(measured, named);
}

TEST(KernelBench, RowsOfBf16PromptsSayWhyTheyAreMissing) {
  const std::vector<std::string> targets = kernels::AvailableTargets();
  if (std::find(targets.begin(), targets.end(), "avx2") == targets.end()) GTEST_SKIP() << "needs AVX2";
  ASSERT_TRUE(kernels::SetTarget("avx2").ok());
  KernelContext context(1);
  LinearWorld world(context, {"64x64", 64, 64});
  const auto rows = MeasurePrefillDtypeRows(world, {"prefill_bf16_share", "prefill_bf16_speedup"}, 1);
  ASSERT_TRUE(kernels::SetTarget("auto").ok());
  ASSERT_EQ(rows.size(), 2u);
  for (const RowResult& row : rows) {
    EXPECT_TRUE(row.samples.empty());
    EXPECT_NE(row.missing.find("avx2"), std::string::npos) << row.missing;
  }
}

TEST(KernelBench, ErrorRowsAreBelowTheBoundOfTheirContract) {
  KernelContext context(1);
  const auto rows = MeasureErrorRows(context, {"exact_error"}, 2);
  ASSERT_EQ(rows.size(), 1u);
  for (const double error : rows[0].samples) {
    EXPECT_GT(error, 0);
    EXPECT_LT(error, 1e-5);
  }
}

TEST(KernelBench, StepRowsTakeTheWholeStepApart) {
  KernelContext context(1);
  const auto base = SyntheticBase(context, ShapeConfig("small"), 1);
  const auto rows = MeasureStepRows(context, base, "small", {}, 3);
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].name, "non_matrix_share");
  for (const double share : rows[0].samples) EXPECT_LT(share, 1);
}

TEST(ModelBench, ReportsEveryTableOfASmallModel) {
  if (kernels::IsScalarTarget()) GTEST_SKIP() << "the scalar target has no limits";
  KernelContext context(1);
  const auto base = SyntheticBase(context, ShapeConfig("small"), 1);
  const ModelBenchOptions options = {.n_threads = 1,
                                     .n_variants = 2,
                                     .prompt_tokens = {16},
                                     .batches = {1, 2, 3},
                                     .table_prompt_tokens = 4,
                                     .table_rounds = 1,
                                     .decode_rounds = 2,
                                     .decode_tokens = 4,
                                     .prompt_budget_s = 0,
                                     .promise_pairs = 1,
                                     .max_drift = 0,
                                     .on_progress = {}};
  const ModelBenchReport report = ValueOrDie(RunModelBench("small", base, options));
  const Json json = ToJson(report);
  EXPECT_EQ(report.drift, Drift(report.before, report.after));
  EXPECT_EQ(json["void"], true) << "two measurements of a machine never agree to the last bit";
  EXPECT_EQ(json["limits"]["drift"], report.drift);
  EXPECT_EQ(json["variants"].size(), 3u);
  EXPECT_EQ(json["variants"][0]["name"], "base");
  EXPECT_EQ(json["variants"][0]["ratio"], 1.0);
  ASSERT_EQ(json["batches"].size(), 3u);
  EXPECT_TRUE(json["batches"][1].contains("distinct_variants"));
  EXPECT_FALSE(json["batches"][2].contains("distinct_variants")) << "three rows, two variants";
  EXPECT_EQ(json["prompts"][0]["pairs"], 1);
  EXPECT_EQ(json["batches"][0]["one_variant"]["ratio_samples"].size(), 2u) << "one a round";
  EXPECT_EQ(json["memory"]["base_bytes"], base->bytes);
  EXPECT_GT(json["memory"]["rss_bytes"].get<uint64_t>(), base->bytes);
  EXPECT_EQ(json["promises"].size(), 1u) << "one row; 8 rows and 512 tokens were not asked for";
  // A step of one base row reads the matrices once and little else.
  const BatchLine& line = report.batches[0];
  EXPECT_GT(line.read_bytes_per_second, 0);
  // Of two rounds: share and time of a step vary between them, by less than 10 times.
  const double bytes = line.base_bandwidth_share.value * line.read_bytes_per_second * line.base_step_ms * 1e-3;
  EXPECT_GT(bytes, static_cast<double>(base->bytes) / 10);
  EXPECT_LT(bytes, static_cast<double>(base->bytes) * 10);
  EXPECT_EQ(Plots(report)[0].series[0].points.size(), 2u);
}

TEST(ModelBench, PromisesNothingThatWasNotMeasured) {
  EXPECT_EQ(ToJson(ModelBenchReport{})["void"], false);
  ModelBenchReport report = {.prompts = {{.n_tokens = 512, .n_pairs = 1, .ttft_ratio = PairedRatio({1.01})}}};
  EXPECT_EQ(Promises(report).size(), 1u) << "the first token; without a batch of one row no share of read bandwidth";
  EXPECT_TRUE(ToJson(report)["prompts"][0]["base_bandwidth_share"].is_null());
  report.prompts[0].base_bandwidth_share = PairedRatio({0.9});
  ASSERT_EQ(Promises(report).size(), 2u);
  EXPECT_TRUE(Promises(report)[1].holds());
}

TEST(ModelBench, APromiseHoldsByTheBoundOfItsMedian) {
  // Medians of resamples of three lie anywhere between the smallest and the largest in more than 5 % of cases.
  ModelBenchReport report = {
      .prompts = {{.n_tokens = 512, .n_pairs = 3, .ttft_ratio = PairedRatio({1.0, 1.01, 1.09})}}};
  ASSERT_EQ(Promises(report).size(), 1u);
  EXPECT_EQ(Promises(report)[0].ratio.value, 1.01);
  EXPECT_FALSE(Promises(report)[0].holds());
  const Json json = ToJson(report)["promises"][0];
  EXPECT_EQ(json["value"], 1.01);
  EXPECT_EQ(json["value_interval"][1], 1.09);
  EXPECT_EQ(json["value_samples"].size(), 3u);
  EXPECT_EQ(json["pass"], false);
  report.prompts[0].ttft_ratio = PairedRatio({1.0, 1.01, 1.02});
  EXPECT_TRUE(Promises(report)[0].holds());
}

TEST(ModelBench, RefusesWhatDoesNotFit) {
  KernelContext context(1);
  const auto base = SyntheticBase(context, ShapeConfig("small"), 1);
  ExpectRefusal(RunModelBench("small", base, {.prompt_tokens = {5000}}), StatusCode::kInvalidArgument,
                {"5000", "4096"});
  ExpectRefusal(RunModelBench("small", base, {.batches = {65}}), StatusCode::kInvalidArgument, {"64"});
  ExpectRefusal(MakeBenchBase(ShapeConfig("llama-8b"), 100'000), StatusCode::kFailedPrecondition, {"memory"});
}

// Writes 256 MB to measure the disk.
TEST(CodecBenchSlow, MeasuresEveryLineAndLeavesNothingBehind) {
  if (kernels::IsScalarTarget()) GTEST_SKIP() << "the scalar target has no limits";
  const testing::TemporaryDirectory directory;
  const CodecBenchReport report =
      ValueOrDie(RunCodecBench({.shape = "small", .directory = directory.path(), .n_threads = 1, .n_rounds = 1}));
  const Json json = ToJson(report);
  EXPECT_EQ(json["results"].size(), 12u);
  for (const Json& line : json["results"]) EXPECT_GT(line["bytes_per_second"].get<double>(), 0) << line["name"];
  EXPECT_GT(json["limits"]["disk_read_bytes_per_second"].get<double>(), 0);
  EXPECT_FALSE(json.contains("kept"));
  ExpectRefusal(RunCodecBench({.shape = "gpt-5", .directory = directory.path(), .n_rounds = 1}),
                StatusCode::kInvalidArgument, {"gpt-5"});
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

TEST(MergeBenchSlow, GivesEveryPromiseAVerdictAndLeavesNothingBehind) {
  if (kernels::IsScalarTarget()) GTEST_SKIP() << "the scalar target has no limits";
  const testing::TemporaryDirectory directory;
  const MergeBenchReport report = ValueOrDie(RunMergeBench(
      {.shape = "small", .directory = directory.path(), .n_threads = 1, .n_rounds = 1, .rows = 1000, .cols = 1100}));
  const Json json = ToJson(report);
  ASSERT_EQ(json["results"].size(), 7u);
  size_t n_verdicts = 0;
  for (const Json& line : json["results"]) {
    EXPECT_GT(line["seconds"].get<double>(), 0) << line["name"];
    n_verdicts += line.contains("pass") ? 1 : 0;
  }
  EXPECT_EQ(n_verdicts, 5u);
  EXPECT_EQ(json["results"][3]["way"].get<std::string>().find("randomised"), 0u);
  EXPECT_EQ(json["results"][4]["way"].get<std::string>().find("Gram"), 0u);
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

}  // namespace
}  // namespace df::tools
