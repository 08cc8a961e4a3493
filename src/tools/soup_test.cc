#include "tools/soup.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <set>

#include "base/atomic_file.h"
#include "format/checkpoint.h"
#include "testing/made_checkpoint.h"
#include "testing/refusal.h"

namespace df::tools {
namespace {

namespace fs = std::filesystem;
using testing::ExpectRefusal;
using testing::ValueOrDie;

// Checkpoints say in score.txt how good they are; of merged ones `merged_score` of the folder does. Every measurement
// is noted in `log`.
class SoupTest : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(run_);
    testing::WriteModel({}, base_);
    SetMerged("100");
  }

  void SetMerged(const std::string& score) { DF_EXPECT_OK(WriteFileAtomically(merged_score_, score)); }

  void Add(uint64_t step, const std::string& score, testing::MadeModel model = {.change = 0.1}) {
    const std::string path = PathOf(step);
    model.change_seed = step;
    testing::WriteModel(model, path);
    DF_EXPECT_OK(WriteFileAtomically(path + "/score.txt", score));
    DF_EXPECT_OK(WriteFileAtomically(path + "/optimizer.pt", "much"));
    DF_EXPECT_OK(WriteFileAtomically(path + "/trainer_state.json", "{}"));
  }
  std::string PathOf(uint64_t step) const { return run_ + "/checkpoint-" + std::to_string(step); }

  SoupOptions Options() const {
    SoupOptions options{.out = out_, .base = base_, .method = {.parameters = {{"rank", {2}}}}, .n_threads = 1};
    options.score.command = "echo {model} >> " + log_ + "; case {model} in *-merged) cat " + merged_score_ +
                            ";; *) cat {model}/score.txt;; esac";
    options.score.higher_is_better = false;
    return options;
  }

  // Takes what is there, as a trainer's callback has it.
  Result<std::vector<WaitingCheckpoint>> TakeAll(const SoupOptions& options, uint64_t every = 0) {
    DF_ASSIGN_OR_RETURN(const auto soup, Soup::Open(options));
    WatchOptions watch{.directory = run_, .every = every, .once = true};
    watch.find.settle_s = 0;
    Result<std::vector<WaitingCheckpoint>> waiting = WatchCheckpoints(*soup, watch);
    steps_ = soup->steps();
    skips_ = soup->skips();
    return waiting;
  }
  void Take(uint64_t every = 0) { DF_ASSERT_OK(TakeAll(Options(), every)); }

  size_t Measurements() const {
    const Result<std::string> log = ReadFileBounded(log_, size_t{1} << 20);
    return log.ok() ? static_cast<size_t>(std::ranges::count(*log, '\n')) : 0;
  }

  // One line a step: newest, merged, best, what was kept.
  std::vector<std::string> Curve() const {
    std::vector<std::string> lines;
    const auto text = [](const std::optional<double>& score) { return score ? DumpJson(Json(*score)) : "-"; };
    for (const SoupStep& step : steps_) {
      lines.push_back(std::to_string(step.checkpoint.step) + ": " + text(step.newest) + " " + text(step.merged) + " " +
                      text(step.best) + " " + std::string(KeptName(step.kept)));
    }
    return lines;
  }

  std::vector<std::string> Stored() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(out_ + "/checkpoints")) names.push_back(entry.path().filename());
    std::ranges::sort(names);
    return names;
  }
  std::string Link() const {
    std::error_code error;
    return fs::read_symlink(out_ + "/best", error).filename().string();
  }

  testing::TemporaryDirectory directory_;
  const std::string run_ = directory_.Sub("run"), base_ = directory_.Sub("base"), out_ = directory_.Sub("out");
  const std::string log_ = directory_.Sub("log"), merged_score_ = directory_.Sub("merged_score");
  std::vector<SoupStep> steps_;
  std::vector<SoupSkip> skips_;
};

using Lines = std::vector<std::string>;

TEST_F(SoupTest, KeepsTheBestOfBeforeNewestAndMerged) {
  Add(10, "5.0");
  Take();
  EXPECT_EQ(Curve(), Lines({"10: 5.0 - 5.0 newest"})) << "alone";
  EXPECT_EQ(Link(), "0001-step-10");
  Add(20, "4.0");
  Take();
  EXPECT_EQ(Curve().back(), "20: 4.0 100.0 4.0 newest");
  Add(30, "6.0");
  SetMerged("3.5");
  Take();
  EXPECT_EQ(Curve().back(), "30: 6.0 3.5 3.5 merged");
  EXPECT_EQ(Link(), "0003-step-30-merged");
  Add(40, "7.0");
  SetMerged("4.5");
  Take();
  EXPECT_EQ(Curve().back(), "40: 7.0 4.5 3.5 best");
  EXPECT_EQ(Link(), "0003-step-30-merged");
  EXPECT_EQ(Stored(), Lines({"0003-step-30-merged"})) << "what is not the best is removed";
  DF_EXPECT_OK(Checkpoint::Open(out_ + "/best").status());
  EXPECT_EQ(Measurements(), 7U) << "nothing twice";
}

TEST_F(SoupTest, WhatIsKeptIsTheMergeOfBestAndNewest) {
  Add(10, "5.0");
  Add(20, "6.0");
  SetMerged("4.0");
  SoupOptions options = Options();
  options.method = {.name = "linear"};
  DF_ASSERT_OK(TakeAll(options));
  ASSERT_EQ(Link(), "0002-step-20-merged");
  const auto best = ValueOrDie(Checkpoint::Open(out_ + "/best"));
  const auto a = ValueOrDie(Checkpoint::Open(PathOf(10))), b = ValueOrDie(Checkpoint::Open(PathOf(20)));
  for (const std::string& name : best->names()) {
    const auto got = testing::Floats(best->FindOrNull(name)->view);
    const auto one = testing::Floats(a->FindOrNull(name)->view), two = testing::Floats(b->FindOrNull(name)->view);
    for (size_t i = 0; i < got.size(); ++i) {
      const double mean = (static_cast<double>(one[i]) + static_cast<double>(two[i])) / 2;
      // bf16 keeps 8 bits: half an ulp of the mean.
      ASSERT_NEAR(static_cast<double>(got[i]), mean, std::abs(mean) / 256 + 1e-30) << name << i;
    }
  }
}

TEST_F(SoupTest, ACopyHasTheModelAndNotTheTrainersState) {
  Add(10, "5.0");
  Take();
  for (const char* name : {"config.json", "model.safetensors", "score.txt"}) {
    EXPECT_EQ(ValueOrDie(ReadFileBounded(out_ + "/best/" + name, size_t{1} << 24)),
              ValueOrDie(ReadFileBounded(PathOf(10) + "/" + name, size_t{1} << 24)));
  }
  EXPECT_FALSE(fs::exists(out_ + "/best/optimizer.pt"));
  EXPECT_FALSE(fs::exists(out_ + "/best/trainer_state.json"));
}

TEST_F(SoupTest, OfEqualScoresTheOlderStaysAndMergedGoesBeforeNewest) {
  Add(10, "5.0");
  Add(20, "5.0");
  SetMerged("5.0");
  Take();
  EXPECT_EQ(Curve(), Lines({"10: 5.0 - 5.0 newest", "20: 5.0 5.0 5.0 best"}));
  Add(30, "4.0");
  SetMerged("4.0");
  Take();
  EXPECT_EQ(Curve().back(), "30: 4.0 4.0 4.0 merged");
}

TEST_F(SoupTest, HigherScoresAreBetterWhereItIsSaidSo) {
  SoupOptions options = Options();
  options.score.higher_is_better = true;
  Add(10, "5.0");
  Add(20, "6.0");
  SetMerged("5.5");
  DF_ASSERT_OK(TakeAll(options));
  EXPECT_EQ(Curve().back(), "20: 6.0 5.5 6.0 newest");
}

TEST_F(SoupTest, AScoreThatIsNoNumberIsNeitherMergedNorKept) {
  Add(10, "nan");
  Take();
  EXPECT_EQ(Curve(), Lines({"10: - - - best"}));
  EXPECT_EQ(Link(), "");
  Add(20, "5.0");
  Add(30, "inf");
  Take();
  EXPECT_EQ(Curve(), Lines({"10: - - - best", "20: 5.0 - 5.0 newest", "30: - - 5.0 best"}));
  Add(40, "4.0");
  SetMerged("nan");
  Take();
  EXPECT_EQ(Curve().back(), "40: 4.0 - 4.0 newest");
  EXPECT_NE(steps_.back().note.find("no finite number"), std::string::npos);
  Take();
  EXPECT_EQ(steps_.size(), 4U);
}

TEST_F(SoupTest, PassesOverCheckpointsBetween) {
  for (const uint64_t step : {10U, 15U, 19U, 20U, 35U}) Add(step, "5.0");
  Take(10);
  ASSERT_EQ(steps_.size(), 3U);
  EXPECT_EQ(steps_[1].checkpoint.step, 20U);
  EXPECT_EQ(steps_[2].checkpoint.step, 35U);
}

TEST_F(SoupTest, ATrainingThatIsRunAgainComesByTheSameSteps) {
  Add(10, "5.0");
  Take();
  Add(10, "4.0", {.change = 0.2});
  Take();
  EXPECT_EQ(Curve(), Lines({"10: 5.0 - 5.0 newest", "10: 4.0 100.0 4.0 newest"}));
  EXPECT_EQ(Link(), "0002-step-10");
}

TEST_F(SoupTest, HalfACheckpointIsLeftForLaterAndDoesNotHoldUpOthers) {
  Add(10, "5.0");
  Add(20, "4.0");
  const std::string weights = PathOf(10) + "/model.safetensors";
  const std::string content = ValueOrDie(ReadFileBounded(weights, size_t{1} << 24));
  DF_EXPECT_OK(WriteFileAtomically(weights, content.substr(0, content.size() / 2)));
  const auto waiting = ValueOrDie(TakeAll(Options()));
  ASSERT_EQ(waiting.size(), 1U);
  EXPECT_EQ(waiting[0].name, "checkpoint-10");
  EXPECT_EQ(Curve(), Lines({"20: 4.0 - 4.0 newest"}));
  DF_EXPECT_OK(WriteFileAtomically(weights, content));
  EXPECT_TRUE(ValueOrDie(TakeAll(Options())).empty());
  EXPECT_EQ(steps_.size(), 2U);
}

TEST_F(SoupTest, ACheckpointThatVanishesIsSkipped) {
  Add(10, "5.0");
  Add(20, "4.0");
  for (const char* const moment : {"measured checkpoint-20", "taking checkpoint-20"}) {
    fs::remove_all(out_);
    Add(20, "4.0");
    SoupOptions options = Options();
    options.on_progress = [&](const std::string& what, uint64_t, uint64_t) {
      if (what == moment) fs::remove_all(PathOf(20));
      return true;
    };
    DF_ASSERT_OK(TakeAll(options));
    EXPECT_EQ(Curve(), Lines({"10: 5.0 - 5.0 newest"})) << moment;
    ASSERT_EQ(skips_.size(), 1U) << moment;
    EXPECT_EQ(skips_[0].checkpoint.step, 20U);
    EXPECT_EQ(Link(), "0001-step-10");
  }
}

TEST_F(SoupTest, AMergedCheckpointOutlivesItsNewest) {
  Add(10, "5.0");
  Add(20, "6.0");
  SetMerged("4.0");
  SoupOptions options = Options();
  options.on_progress = [&](const std::string& what, uint64_t, uint64_t) {
    if (what == "merged checkpoint-20") fs::remove_all(PathOf(20));
    return true;
  };
  DF_ASSERT_OK(TakeAll(options));
  EXPECT_EQ(Curve().back(), "20: 6.0 4.0 4.0 merged");
  EXPECT_EQ(Link(), "0002-step-20-merged");
}

TEST_F(SoupTest, WhatCannotBeMergedIsMeasuredAlone) {
  Add(10, "5.0");
  Add(20, "4.0", {.n_layers = 3, .change = 0.1});
  Take();
  EXPECT_EQ(Curve().back(), "20: 4.0 - 4.0 newest");
  EXPECT_NE(steps_.back().note.find("not merged"), std::string::npos);

  fs::remove_all(out_);
  Add(20, "4.0");
  testing::WriteModel({.change = 0.1}, PathOf(20), [](const std::string& name, std::vector<float>& values) {
    if (name == "model.norm.weight") values[3] = NAN;
  });
  Take();
  EXPECT_EQ(Curve().back(), "20: 4.0 - 4.0 newest");
  EXPECT_NE(steps_.back().note.find("not merged"), std::string::npos);
  EXPECT_NE(steps_.back().note.find("model.norm.weight"), std::string::npos);
}

TEST_F(SoupTest, ACommandThatFailsOrHangsIsAnErrorAndTheStepIsTakenLater) {
  Add(10, "5.0");
  Take();
  Add(20, "4.0");
  SoupOptions options = Options();
  options.score.command = "echo no memory for {model} >&2; exit 1";
  ExpectRefusal(TakeAll(options), StatusCode::kFailedPrecondition, {"belongs to another soup", "command"});
  fs::rename(merged_score_, merged_score_ + ".away");
  ExpectRefusal(TakeAll(Options()), StatusCode::kFailedPrecondition, {"checkpoint-20", "merged_score"});
  EXPECT_EQ(Link(), "0001-step-10");
  SetMerged("no number");
  ExpectRefusal(TakeAll(Options()), StatusCode::kFailedPrecondition, {"printed no number"});
  SetMerged("3.0");
  Take();
  EXPECT_EQ(Curve().back(), "20: 4.0 3.0 3.0 merged");
  EXPECT_EQ(Measurements(), 5U) << "newest once each, merged until it had a score";
}

TEST_F(SoupTest, ACommandIsBoundedInTime) {
  Add(10, "5.0");
  SoupOptions options = Options();
  options.score.command = "sleep 30; echo {model}";
  options.score.command_timeout_s = 0.2;
  ExpectRefusal(TakeAll(options), StatusCode::kDeadlineExceeded, {"checkpoint-10", "sleep 30"});
  EXPECT_TRUE(steps_.empty() && skips_.empty());
}

TEST_F(SoupTest, AMetricFileMeasuresWhatTheTrainerWrote) {
  SoupOptions options = Options();
  options.score.command.clear();
  options.score.metric_file = "trainer_state.json";
  options.score.metric = "eval_loss";
  for (const uint64_t step : {10U, 20U, 30U}) {
    Add(step, "1");
    const std::string loss = step == 20 ? "NaN" : std::to_string(0.5 + 1.0 / static_cast<double>(step));
    DF_EXPECT_OK(WriteFileAtomically(
        PathOf(step) + "/trainer_state.json",
        "{\"log_history\": [{\"eval_loss\": 9.0}, {\"eval_loss\": " + loss + "}, {\"loss\": 0.1}]}"));
  }
  DF_ASSERT_OK(TakeAll(options));
  EXPECT_EQ(Curve(), Lines({"10: 0.6 - 0.6 newest", "20: - - 0.6 best", "30: 0.533333 - 0.533333 newest"}));
  EXPECT_NE(steps_.back().note.find("no metric file"), std::string::npos);
  EXPECT_EQ(Measurements(), 0U);

  fs::remove_all(out_);
  options.score.command = Options().score.command;
  SetMerged("0.4");
  DF_ASSERT_OK(TakeAll(options));
  EXPECT_EQ(Curve().back(), "30: 0.533333 0.4 0.4 merged");
  EXPECT_EQ(Measurements(), 1U);

  fs::remove_all(out_);
  options.score.metric = "eval_bleu";
  ExpectRefusal(TakeAll(options), StatusCode::kFailedPrecondition, {"checkpoint-10/trainer_state.json", "eval_bleu"});
}

TEST(MetricAt, FollowsKeysAndIndices) {
  const Json file = ValueOrDie(ParseJson(
      R"({"a": {"b": [1, {"c": 2.5}]}, "x.y": 3, "s": "NaN", "t": "text", "n": null, "log_history": [{"l": 1}, {"l": 2}, {}]})"));
  EXPECT_EQ(ValueOrDie(MetricAt(file, "a.b.0")), 1);
  EXPECT_EQ(ValueOrDie(MetricAt(file, "a.b.-1.c")), 2.5);
  EXPECT_EQ(ValueOrDie(MetricAt(file, "x.y")), 3);
  EXPECT_EQ(ValueOrDie(MetricAt(file, "l")), 2);
  EXPECT_TRUE(std::isnan(ValueOrDie(MetricAt(file, "s"))));
  EXPECT_TRUE(std::isnan(ValueOrDie(MetricAt(file, "n"))));
  for (const char* path : {"", "a", "a.b", "a.b.2", "a.b.-3", "a.b.x", "t", "z", "a..b", "l.l", "."}) {
    ExpectRefusal(MetricAt(file, path), StatusCode::kFailedPrecondition, {path});
  }
}

TEST_F(SoupTest, RefusesWhatCannotBeMeant) {
  const auto refuse = [&](const std::function<void(SoupOptions&)>& spoil,
                          std::initializer_list<std::string_view> words) {
    SoupOptions options = Options();
    spoil(options);
    ExpectRefusal(Soup::Open(options).status(), StatusCode::kInvalidArgument, words);
    EXPECT_FALSE(fs::exists(out_));
  };
  refuse([](auto& o) { o.score.higher_is_better.reset(); }, {"lower or higher"});
  refuse([](auto& o) { o.score.command = "echo 1"; }, {"{model}"});
  refuse([](auto& o) { o.score.command.clear(); }, {"nothing to measure"});
  refuse([](auto& o) { o.score.text_file = "text"; }, {"not by several"});
  refuse([](auto& o) { o.score.metric_file = "f.json"; }, {"key"});
  refuse([](auto& o) { o.base.clear(); }, {"base_model is missing"});
  refuse([](auto& o) { o.method.parameters["rank"] = {1, 2}; }, {"rank", "2 values"});
  refuse([](auto& o) { o.method.parameters["energy"] = {7}; }, {"energy"});
  ExpectRefusal(SoupRecipe({.name = "average"}, base_, "a", "b"), StatusCode::kUnsupported, {"average", "svd_average"});
}

TEST_F(SoupTest, EveryMethodMergesTwo) {
  Add(10, "5.0");
  Add(20, "6.0");
  SetMerged("4.0");
  for (const merge::Method& method : merge::Methods()) {
    fs::remove_all(out_);
    SoupOptions options = Options();
    options.method = {.name = std::string(method.name)};
    DF_ASSERT_OK(TakeAll(options));
    EXPECT_EQ(Curve().back(), "20: 6.0 4.0 4.0 merged") << method.name << ": " << steps_.back().note;
  }
  const merge::Recipe recipe = ValueOrDie(
      SoupRecipe({.name = "dare-ties", .parameters = {{"weight", {0.7, 0.3}}, {"density", {0.5}}}}, base_, "a", "b"));
  EXPECT_EQ(recipe.models[0].parameters.at("weight").cases[0].values, std::vector<double>{0.7});
  EXPECT_EQ(recipe.models[1].parameters.at("weight").cases[0].values, std::vector<double>{0.3});
  EXPECT_EQ(recipe.method, "dare_ties");
}

TEST_F(SoupTest, TakesOnlyADirectoryOfItsOwn) {
  fs::create_directories(out_ + "/checkpoints/precious");
  ExpectRefusal(Soup::Open(Options()).status(), StatusCode::kFailedPrecondition, {"no soup"});
  EXPECT_TRUE(fs::exists(out_ + "/checkpoints/precious"));
  fs::remove_all(out_);
  const auto soup = ValueOrDie(Soup::Open(Options()));
  ExpectRefusal(Soup::Open(Options()).status(), StatusCode::kFailedPrecondition, {"in use"});
}

TEST_F(SoupTest, KeepsWhatWasTheBestOnceWhenItIsTold) {
  Add(10, "5.0");
  Add(20, "4.0");
  Add(30, "3.0");
  SoupOptions options = Options();
  options.keep_all = true;
  DF_ASSERT_OK(TakeAll(options));
  EXPECT_EQ(Stored(), Lines({"0001-step-10", "0002-step-20", "0003-step-30"}));
  Take();
  EXPECT_EQ(Stored(), Lines({"0003-step-30"}));
}

TEST_F(SoupTest, AJournalThatIsNoneIsRefusedByLineAndALineCutShortIsNot) {
  Add(10, "5.0");
  Take();
  const std::string path = out_ + "/soup.jsonl", journal = ValueOrDie(ReadFileBounded(path, size_t{1} << 20));
  const size_t first = journal.find('\n') + 1;
  for (size_t size = first; size < journal.size(); size += 7) {
    DF_EXPECT_OK(WriteFileAtomically(path, journal.substr(0, size)));
    Take();
    EXPECT_EQ(Curve(), Lines({"10: 5.0 - 5.0 newest"})) << size;
    EXPECT_EQ(Stored(), Lines({"0001-step-10"})) << size;
  }
  for (const char* line : {"{}\n", "x\n", "{\"event\": \"step\"}\n", "{\"event\": \"other\"}\n", "[1]\n",
                           "{\"event\": \"step\", \"checkpoint\": \"c\", \"step\": 1, \"stamp\": \"s\", \"newest\": 1, "
                           "\"best\": 1, \"kept\": \"newest\", \"directory\": \"../../precious\"}\n"}) {
    DF_EXPECT_OK(WriteFileAtomically(path, journal + line));
    ExpectRefusal(Soup::Open(Options()).status(), StatusCode::kCorrupt, {"line 4"});
  }
  DF_EXPECT_OK(WriteFileAtomically(path, ""));
  ExpectRefusal(Soup::Open(Options()).status(), StatusCode::kCorrupt, {"soup.jsonl"});
}

TEST_F(SoupTest, CurveIsDrawnOverTheSteps) {
  Add(10, "5.0");
  Add(20, "nan");
  Add(30, "4.0");
  Take();
  const Plot plot = PlotOf(steps_, "loss <of> text");
  ASSERT_EQ(plot.series.size(), 3U);
  EXPECT_EQ(plot.series[0].points.size(), 2U);
  EXPECT_EQ(plot.series[1].points.size(), 1U);
  EXPECT_EQ(plot.series[2].points.size(), 3U);
  EXPECT_NE(RenderSvg({&plot, 1}).find("loss &lt;of&gt; text"), std::string::npos);
}

class SoupKillsSlow : public SoupTest {
 protected:
  // Takes all in a process that ends itself at the `n`th thing it says. Whether it did.
  bool KilledAt(size_t n) {
    const pid_t pid = fork();
    if (pid == 0) {
      size_t n_said = 0;
      SoupOptions options = Options();
      options.on_progress = [&](const std::string&, uint64_t, uint64_t) {
        if (n_said++ == n) kill(getpid(), SIGKILL);
        return true;
      };
      _exit(TakeAll(options).ok() ? 0 : 1);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
    return WIFSIGNALED(status);
  }

  // No score of the journal stands there twice.
  void ExpectNothingMeasuredTwice() const {
    std::set<std::string> seen;
    const std::string journal = ValueOrDie(ReadFileBounded(out_ + "/soup.jsonl", size_t{1} << 20));
    for (size_t begin = 0, end = 0; (end = journal.find('\n', begin)) != std::string::npos; begin = end + 1) {
      const Json line = ValueOrDie(ParseJson(std::string_view(journal).substr(begin, end - begin)));
      if (line["event"] == "score") {
        EXPECT_TRUE(seen.insert(DumpJson(line)).second) << DumpJson(line);
      }
    }
  }
};

TEST_F(SoupKillsSlow, AtEveryMomentTheOldStateOrTheNewOneStands) {
  Add(10, "5.0");
  Add(20, "6.0");
  Add(30, "3.0");
  SetMerged("4.0");
  Take();
  const Lines expected = Curve(), stored = Stored();
  ASSERT_EQ(expected.back(), "30: 3.0 4.0 3.0 newest");
  const std::set<std::string> bests = {"", "0001-step-10", "0002-step-20-merged", "0003-step-30"};
  size_t n = 0;
  for (bool was_killed = true; was_killed; ++n) {
    fs::remove_all(out_);
    was_killed = KilledAt(n);
    EXPECT_TRUE(bests.contains(Link())) << Link();
    if (!Link().empty()) {
      DF_EXPECT_OK(Checkpoint::Open(out_ + "/best").status());
    }
    Take();
    ASSERT_EQ(Curve(), expected) << "killed at " << n;
    EXPECT_EQ(Stored(), stored) << "killed at " << n;
    ExpectNothingMeasuredTwice();
  }
  EXPECT_GT(n, 40U) << "tensors and every step between";
}

}  // namespace
}  // namespace df::tools
