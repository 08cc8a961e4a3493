#include "tools/targets.h"

#include <gtest/gtest.h>

#include "base/json.h"
#include "testing/refusal.h"
#include "testing/status_matchers.h"
#include "tools/bench_kernels.h"
#include "tools/cpu_timer.h"
#include "tools/row_set.h"

namespace df::tools {
namespace {

using testing::ExpectRefusal;
using testing::ValueOrDie;

TEST(Targets, TheBuiltInTableHasEveryPromise) {
  const TargetTable table = ValueOrDie(ParseTargets(BuiltInTargetsText()));
  EXPECT_EQ(table.pairs, 30u);
  EXPECT_DOUBLE_EQ(table.max_drift, 0.1);
  for (const char* name :
       {"gemv_bandwidth_share", "base_bound_share_2", "base_bound_share_4", "base_bound_share_8", "base_bound_share_16",
        "decode_variant_over_base", "decode_mixed_bound_2", "decode_mixed_bound_4", "decode_mixed_bound_8",
        "decode_8_variants_vs_separate", "prefill_variant_over_base_16", "prefill_variant_over_base_64",
        "prefill_variant_over_base_256", "prefill_fma_share", "repack_share", "lut_error", "exact_error",
        "non_matrix_share"}) {
    const Target* target = table.FindOrNull(name);
    ASSERT_NE(target, nullptr) << name;
    EXPECT_TRUE(target->For("avx512").has_value()) << name;
    EXPECT_TRUE(target->For("avx2").has_value()) << name;
    EXPECT_FALSE(target->For("sse4").has_value()) << name;
  }
  const Target* plain = table.FindOrNull("head_greedy_share");
  ASSERT_NE(plain, nullptr);
  EXPECT_FALSE(plain->For("avx2").has_value()) << "measured, nothing is promised";
}

TEST(Targets, TheBoundOnTheBadSideDecides) {
  const Target share = {.name = "", .what = "", .unit = "", .higher_is_better = true};
  EXPECT_TRUE(share.Meets(0.9, {.low = 0.9, .high = 0.95}));
  EXPECT_FALSE(share.Meets(0.9, {.low = 0.89, .high = 0.95}));
  const Target ratio = {.name = "", .what = "", .unit = "", .higher_is_better = false};
  EXPECT_TRUE(ratio.Meets(1.1, {.low = 1.0, .high = 1.1}));
  EXPECT_FALSE(ratio.Meets(1.1, {.low = 1.0, .high = 1.11}));
}

TEST(Targets, RefusesWhatIsNoTable) {
  ExpectRefusal(ParseTargets("{"), StatusCode::kCorrupt, {});
  ExpectRefusal(ParseTargets(R"({"pairs": 0, "max_drift": 0.1, "targets": []})"), StatusCode::kInvalidArgument,
                {"pairs"});
  ExpectRefusal(ParseTargets(R"({"pairs": 30, "max_drift": 0.1, "targets": {}})"), StatusCode::kInvalidArgument,
                {"targets"});
  ExpectRefusal(ParseTargets(R"({"pairs": 30, "max_drift": 0.1, "targets":
                    [{"name": "a", "what": "", "unit": "", "better": "bigger"}]})"),
                StatusCode::kInvalidArgument, {"a", "bigger"});
  ExpectRefusal(ParseTargets(R"({"pairs": 30, "max_drift": 0.1, "targets":
                    [{"name": "a", "what": "", "unit": "", "better": "lower"},
                     {"name": "a", "what": "", "unit": "", "better": "lower"}]})"),
                StatusCode::kInvalidArgument, {"a", "twice"});
}

TEST(KernelBench, SelectsRowsByPattern) {
  const TargetTable table = ValueOrDie(ParseTargets(BuiltInTargetsText()));
  EXPECT_EQ(ValueOrDie(SelectRows({}, table)).size(), table.targets.size());
  const RowSelection some = {"base_bound_share_16", "base_bound_share_2", "base_bound_share_4", "base_bound_share_8",
                             "repack_share"};
  EXPECT_EQ(ValueOrDie(SelectRows({"base_*", "repack_share"}, table)), some);
  ExpectRefusal(SelectRows({"base_*", "no_such_*"}, table), StatusCode::kInvalidArgument, {"no_such_*", "lut_error"});
  EXPECT_TRUE(WantsAny({"head_greedy_share"}, {"embed_*", "head_*"}));
  EXPECT_FALSE(WantsAny({"gemv_bandwidth_share"}, {"embed_*", "head_*"}));
  EXPECT_TRUE(WantsAny({}, {"embed_*"}));
}

TEST(KernelBench, TheBoundIsTheSlowerOfTwoLimits) {
  const Machine machine = {.n_threads = 1, .read_bytes_per_second = 1, .flops_per_second = 100e9};
  RowResult row = {.name = "a",
                   .shape = "",
                   .samples = {},
                   .bytes_per_second = 10e9,
                   .flops_per_second = 80e9,
                   .read_share = 0.5,
                   .missing = {}};
  EXPECT_DOUBLE_EQ(*BoundShare(row, machine), 0.8);
  row.flops_per_second = 20e9;
  EXPECT_DOUBLE_EQ(*BoundShare(row, machine), 0.5);
  row.read_share.reset();
  EXPECT_DOUBLE_EQ(*BoundShare(row, machine), 0.2) << "reading as it was before the run is no measure";
  row.by_bf16_dots = true;
  EXPECT_DOUBLE_EQ(*BoundShare(row, {.dot_bf16_flops_per_second = 40e9}), 0.5);
  row.from_cache = true;
  EXPECT_FALSE(BoundShare(row, machine).has_value()) << "memory is no bound for it";
  EXPECT_FALSE(BoundShare({.name = "lut_error", .shape = "", .samples = {}, .missing = {}}, machine).has_value());
}

RowResult RowOf(const std::string& name, std::vector<double> samples) {
  return {.name = name, .shape = "4096x4096", .n_threads = 1, .samples = std::move(samples), .missing = {}};
}

TEST(KernelBench, ADriftOfReadingIsReportedAndOneOfTheCoresVoids) {
  const Machine before = {.n_threads = 1, .read_bytes_per_second = 30e9, .flops_per_second = 100e9};
  Machine after = before;
  after.read_bytes_per_second = 45e9;
  EXPECT_DOUBLE_EQ(Drift(before, after), 0.5);
  EXPECT_DOUBLE_EQ(PeakDrift(before, after), 0);
  after.flops_per_second = 80e9;
  EXPECT_NEAR(PeakDrift(before, after), 0.2, 1e-12);
}

// The clock of the calling thread until it has gone on for so long.
void Spin(double seconds) {
  const CpuTimer timer(1);
  while (timer.Seconds() < seconds) {
  }
}

TEST(KernelBench, ReadingIsThatOfTheSameRounds) {
  // A machine whose memory becomes slower while it is measured, and a kernel that takes twice as long as reading.
  double read_s = 1e-3;
  RowSet rows("shape", 1);
  const RowSet::Operation subject = rows.Add([&] { Spin(4 * read_s); });
  const RowSet::Operation read = rows.Add([&] { Spin(read_s), read_s *= 1.5; });
  rows.SetReading(read, 100);
  const auto one = [](const RowSet::Times&) { return 1.0; };
  rows.AddRow({.name = "a", .subject = subject, .cost = {.bytes = 200, .flops = 0}, .others = {}, .sample = one});
  rows.AddRow({.name = "cached",
               .subject = subject,
               .cost = {.bytes = 200, .flops = 0},
               .others = {},
               .sample = one,
               .from_cache = true});
  const std::vector<RowResult> results = rows.Measure({}, 5);
  ASSERT_EQ(results.size(), 2u);
  // Reading 200 bytes takes 2 read_s of the round, the kernel 4; a timer call at each end is some microseconds of 1 ms.
  EXPECT_NEAR(*results[0].read_share, 0.5, 0.02);
  EXPECT_FALSE(results[1].read_share.has_value());
}

TEST(KernelBench, JudgesByTheTargetOfTheInstructionSet) {
  const TargetTable table = ValueOrDie(ParseTargets(BuiltInTargetsText()));
  const RowResult row = RowOf("base_bound_share_4", std::vector<double>(30, 0.7));
  EXPECT_EQ(Judge(row, table, "avx2").verdict, Verdict::kPass);
  EXPECT_EQ(Judge(row, table, "avx512").verdict, Verdict::kMiss);
  EXPECT_EQ(Judge(row, table, "neon").verdict, Verdict::kNoTarget);
  EXPECT_EQ(Judge(RowOf("base_bound_share_4", {}), table, "avx2").verdict, Verdict::kMissing);
}

TEST(KernelBench, AnErrorIsItsWorstCase) {
  const TargetTable table = ValueOrDie(ParseTargets(BuiltInTargetsText()));
  std::vector<double> samples(30, 1e-7);
  samples.back() = 2e-6;
  const JudgedRow judged = Judge(RowOf("exact_error", samples), table, "avx2");
  EXPECT_EQ(judged.value, 2e-6);
  EXPECT_EQ(judged.verdict, Verdict::kMiss);
}

TEST(KernelBench, JsonHasTheKeysThatScriptsRead) {
  const TargetTable table = ValueOrDie(ParseTargets(BuiltInTargetsText()));
  KernelBenchReport report = {.cpu = "cpu", .vector_target = "avx2"};
  report.before = report.after = {Machine{.n_threads = 1, .read_bytes_per_second = 1e10}};
  report.rows = {Judge(RowOf("gemv_bandwidth_share", std::vector<double>(30, 0.95)), table, "avx2"),
                 Judge(RowOf("lut_error", {}), table, "avx2")};
  const Json json = ToJson(report);
  EXPECT_EQ(json["limits"]["before"][0]["read_bytes_per_second"], 1e10);
  const Json& row = json["results"][0];
  EXPECT_EQ(row["name"], "gemv_bandwidth_share");
  EXPECT_EQ(row["shape"], "4096x4096");
  EXPECT_EQ(row["threads"], 1);
  EXPECT_EQ(row["value"], 0.95);
  EXPECT_EQ(row["samples"].size(), 30u);
  EXPECT_EQ(row["unit"], "share");
  EXPECT_EQ(row["target"], 0.9);
  EXPECT_EQ(row["pass"], true);
  EXPECT_TRUE(json["results"][1]["value"].is_null());
  EXPECT_TRUE(json["results"][1]["pass"].is_null()) << "what was not measured has not passed";
}

}  // namespace
}  // namespace df::tools
