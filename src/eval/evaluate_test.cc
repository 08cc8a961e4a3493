#include "eval/evaluate.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/atomic_file.h"
#include "base/json.h"
#include "eval/report.h"
#include "testing/refusal.h"
#include "testing/tiny_family.h"

namespace df::eval {
namespace {

using testing::ExpectRefusal;
using testing::ValueOrDie;

const std::string kDemo = DELTAFOLD_SOURCE_DIR "/demo/";

LoadedBase LoadDemoBase() {
  KernelContext context(1);
  return ValueOrDie(LoadBaseVariant(context, "base", kDemo + "zen-mini-base"));
}

const ReportRow& Row(const Report& report, const std::string& code) {
  for (const ReportRow& row : report.rows) {
    if (row.code == code) return row;
  }
  throw std::runtime_error("no row " + code);
}

// Figures of an independent implementation (PyTorch, f32): 200 questions, 16384 tokens of text.
TEST(EvalSlow, AgreesWithAnIndependentImplementationOnTheBundledFineTune) {
  const Subject math = {.name = "math",
                        .full_directory = kDemo + "finetunes/zen-mini-math",
                        .codes = {},
                        .task_file = kDemo + "eval/math.jsonl"};
  EvalOptions options;
  options.text = ValueOrDie(ReadFileBounded(kDemo + "eval/text.txt", size_t{1} << 20));
  const Report report = MakeReport(ValueOrDie(EvaluateSubject(LoadDemoBase(), math, options)), {});
  ASSERT_EQ(report.rows.size(), 2U);
  EXPECT_EQ(report.rows[0].code, "base");
  const ReportRow &base = Row(report, "base"), &full = Row(report, "full");
  // The figures are rounded to the last digit written; sums in another order move them by far less.
  EXPECT_NEAR(*base.perplexity, 192.551, 0.002);
  EXPECT_NEAR(*full.perplexity, 1026.921, 0.02);
  EXPECT_NEAR(*base.answer_ce, 1.7882, 1e-4);
  EXPECT_NEAR(*full.answer_ce, 0.0339, 1e-4);
  EXPECT_NEAR(base.answer_kl->value, 1.69695, 2e-5);
  EXPECT_EQ(full.answer_kl->value, 0);
  EXPECT_EQ(base.correct, 0U);
  EXPECT_EQ(full.correct, 198U);
  EXPECT_EQ(full.n, 200U);
  EXPECT_NEAR(base.exact_match_difference->value, -99, 1e-9);
  EXPECT_LE(base.exact_match_difference->interval.high, -97);
  EXPECT_NEAR(base.log_perplexity_difference->value, std::log(192.551 / 1026.921), 1e-4);
  EXPECT_EQ(report.codes.size(), 2U);
}

TEST(EvalSlow, AnswersAsGeneratedAreThoseOfTheMostProbableTokens) {
  const Subject sql = {.name = "sql",
                       .full_directory = kDemo + "finetunes/zen-mini-sql",
                       .codes = {{.code = "", .directory = kDemo + "deltas/zen-mini-json"},
                                 {.code = "lora", .directory = kDemo + "adapters/format-title"}},
                       .task_file = kDemo + "eval/sql.jsonl"};
  const LoadedBase base = LoadDemoBase();
  const auto generated = ValueOrDie(EvaluateSubject(base, sql, {.n_items = 12}));
  const auto forced = ValueOrDie(EvaluateSubject(base, sql, {.n_items = 12, .generate = false}));
  ASSERT_EQ(generated.size(), 4U);
  const char* const codes[] = {"base", "full", "rank1", "lora"};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(generated[i].code, codes[i]);
    EXPECT_EQ(generated[i].task, "sql");
    EXPECT_EQ(generated[i].replies.size(), 12U);
    EXPECT_TRUE(forced[i].replies.empty());
    for (size_t item = 0; item < 12; ++item) {
      EXPECT_EQ(generated[i].answers.correct[item].sum, forced[i].answers.correct[item].sum) << codes[i] << item;
    }
  }
  EXPECT_EQ(MeanOf(generated[1].answers.correct), 1);
  EXPECT_EQ(generated[2].bytes, 578048U) << "signs, scales and norms";
  EXPECT_GT(generated[2].file_bytes, generated[2].bytes);
  EXPECT_NEAR(generated[2].bits_per_weight, 8.0 * 578048 / (7345664.0 / 2), 1e-9);
}

class TinyEval : public ::testing::Test {
 protected:
  void SetUp() override {
    testing::WriteTinyBase(directory_ / "base", 1);
    testing::WriteTinyBase(directory_ / "full", 2);
    testing::WriteTinyDelta(directory_ / "delta", directory_ / "base", 3);
    testing::WriteText(directory_ / "task.jsonl",
                       "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"answer\": \"bcd\"}\n"
                       "{\"messages\": [{\"role\": \"user\", \"content\": \"e\"}], \"answer\": \"f\"}\n");
    KernelContext context(1);
    base_ = ValueOrDie(LoadBaseVariant(context, "base", directory_ / "base"));
  }

  testing::TemporaryDirectory directory_{"deltafold-eval"};
  LoadedBase base_;
};

TEST_F(TinyEval, WithoutAFullFineTuneThereIsNothingToDivergeFrom) {
  const Subject subject = {.name = "v",
                           .full_directory = {},
                           .codes = {{.code = "", .directory = directory_ / "delta"}},
                           .task_file = directory_ / "task.jsonl"};
  const Report report = MakeReport(
      ValueOrDie(EvaluateSubject(base_, subject,
                                 {.n_threads = 1, .text = std::string(300, 'x'), .windows = {.window_tokens = 64}})),
      {});
  ASSERT_EQ(report.rows.size(), 2U);
  for (const ReportRow& row : report.rows) {
    EXPECT_EQ(row.n, 2U);
    EXPECT_TRUE(row.perplexity && row.answer_ce && row.exact_match);
    EXPECT_FALSE(row.answer_kl || row.text_kl || row.exact_match_difference || row.log_perplexity_difference);
  }
  EXPECT_TRUE(report.codes.empty());
  EXPECT_EQ(report.rows[1].code, "delta") << "a delta that does not say how it was made";
}

TEST_F(TinyEval, TheReportIsJsonWithEveryKeyAndNullForWhatWasNotMeasured) {
  const Subject subject = {.name = "v",
                           .full_directory = directory_ / "full",
                           .codes = {{.code = "one", .directory = directory_ / "delta"}},
                           .task_file = {}};
  EvalOptions options = {.n_threads = 1, .text = std::string(300, 'x'), .windows = {.window_tokens = 64}};
  const auto results = ValueOrDie(EvaluateSubject(base_, subject, options));
  const Json json = ToJson(MakeReport(results, {}));
  ASSERT_EQ(json["results"].size(), 3U);
  for (const Json& row : json["results"]) {
    for (const char* key : {"variant", "code", "bits_per_weight", "bytes", "task", "n", "correct", "exact_match",
                            "perplexity", "kl_full", "top1_agreement"}) {
      EXPECT_TRUE(row.contains(key)) << key;
    }
    EXPECT_TRUE(row["exact_match"].is_null());
    EXPECT_EQ(row["kl_over"], "text");
    EXPECT_EQ(row["kl_full"], row["text_kl_full"]);
  }
  EXPECT_GT(json["results"][2]["kl_full"].get<double>(), 0);
  EXPECT_EQ(json["summary"].size(), 3U);
  EXPECT_EQ(json["summary"][2]["kl_ratio"]["value"], 1.0) << "the first code over itself";
  // The same again, to the bit.
  EXPECT_EQ(ToJson(MakeReport(ValueOrDie(EvaluateSubject(base_, subject, options)), {})), json);
}

TEST_F(TinyEval, SaysWhatItCannotMeasure) {
  const auto evaluate = [&](const std::string& full, const std::string& code, const std::string& task) {
    const Subject subject = {.name = "v",
                             .full_directory = full.empty() ? "" : directory_ / full,
                             .codes = {{.code = "", .directory = directory_ / code}},
                             .task_file = directory_ / task};
    return EvaluateSubject(base_, subject, {.n_threads = 1});
  };
  ExpectRefusal(evaluate("", "full", "task.jsonl"), StatusCode::kFailedPrecondition, {"v", "full model"});
  ExpectRefusal(evaluate("none", "delta", "task.jsonl"), StatusCode::kNotFound, {"none"});
  ExpectRefusal(evaluate("", "delta", "none.jsonl"), StatusCode::kNotFound, {"none.jsonl"});
  const std::string longer(300, 'a');
  testing::WriteText(directory_ / "long.jsonl",
                     "{\"messages\": [{\"role\": \"user\", \"content\": \"" + longer + "\"}], \"answer\": \"b\"}");
  ExpectRefusal(evaluate("", "delta", "long.jsonl"), StatusCode::kInvalidArgument, {"v", "256"});
}

TEST_F(TinyEval, StopsWhenAsked) {
  const Subject subject = {.name = "v",
                           .full_directory = directory_ / "full",
                           .codes = {{.code = "", .directory = directory_ / "delta"}},
                           .task_file = directory_ / "task.jsonl"};
  EvalOptions options = {.n_threads = 1};
  for (const size_t after : {size_t{0}, size_t{1}, size_t{2}, size_t{3}, size_t{4}}) {
    size_t n_calls = 0;
    options.on_progress = [&](const std::string&, uint64_t, uint64_t) { return n_calls++ < after; };
    ExpectRefusal(EvaluateSubject(base_, subject, options), StatusCode::kCancelled, {});
  }
}

}  // namespace
}  // namespace df::eval
