// Compressions that end before their time, and go on.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <map>

#include "base/rng.h"
#include "codec/compressor.h"
#include "format/step_journal.h"
#include "testing/made_checkpoint.h"

namespace df {
namespace {

using testing::MadeModel;
using testing::TemporaryDirectory;
using testing::ValueOrDie;
using testing::WriteModel;

std::optional<Code> CodeOf(const std::string& text) {
  return text == "auto" ? std::nullopt : std::optional(ValueOrDie(ParseCode(text)));
}

CompressOptions Recipe(const std::string& matrices, const std::string& vocabulary) {
  CompressOptions options;
  options.matrices = CodeOf(matrices);
  options.embeddings = options.head = CodeOf(vocabulary);
  options.max_error = 0.3;
  options.base_name = "base";
  options.model_name = "fine-tune";
  return options;
}

// Codes fitted to a text, the embedding's too where it is the head.
CompressOptions Fitted(CompressOptions options) {
  Calibration& text = options.calibration.emplace();
  for (size_t i = 0; i < 4; ++i) {
    std::vector<int32_t>& sequence = text.sequences.emplace_back();
    for (size_t t = 0; t < 12; ++t) sequence.push_back(static_cast<int32_t>(RandomBits(i, t) % 20));
  }
  return options;
}

class ResumeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    WriteModel({.vocab = 24}, Base());
    WriteModel({.vocab = 29, .tied = false, .stores_head = true, .change = 0.1}, FineTune());
    DF_ASSERT_OK(WriteFileAtomically(FineTune() + "/tokenizer.json", "{}"));
  }

  Status Run(CompressOptions options, size_t n_threads = 2) {
    const auto base = ValueOrDie(Checkpoint::Open(Base()));
    const auto fine_tune = ValueOrDie(Checkpoint::Open(FineTune()));
    KernelContext context(n_threads);
    if (options.calibration) options.calibration->context = &context;
    return Compress(context.pool, *base, *fine_tune, Delta(), options).status();
  }
  Status Resume(CompressOptions options) {
    options.resume = true;
    return Run(std::move(options));
  }

  // Runs in a process of its own, which kills itself before the n-th tensor (from 0); false when there are not so many.
  bool RunAndKill(CompressOptions options, size_t n) {
    const pid_t child = fork();
    if (child == 0) {
      options.on_progress = [n](const CompressOptions::Progress& progress) {
        if (progress.done_tensors == n) kill(getpid(), SIGKILL);
        return true;
      };
      const bool ok = Run(options, 1).ok();
      _exit(ok ? 0 : 1);
    }
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) return true;
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return false;
  }
  void Stop(CompressOptions options, size_t n_tensors) {
    options.on_progress = [n_tensors](const CompressOptions::Progress& p) { return p.done_tensors < n_tensors; };
    EXPECT_EQ(Run(options).code(), StatusCode::kCancelled);
  }

  // Name -> content of all that stands at the target.
  std::map<std::string, std::string> Files() const {
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(Delta())) {
      if (!entry.is_regular_file()) continue;
      files[std::filesystem::relative(entry.path(), Delta())] =
          ValueOrDie(ReadFileBounded(entry.path().string(), size_t{1} << 30));
    }
    return files;
  }
  // The directory that a run left; "" when there is none.
  std::string Left() const {
    std::string left;
    for (const auto& entry : std::filesystem::directory_iterator(directory_.path())) {
      if (entry.path().filename().string().starts_with("delta.tmp-")) left = entry.path().string();
    }
    return left;
  }
  std::map<std::string, std::string> Uninterrupted(const CompressOptions& options) {
    EXPECT_TRUE(Run(options).ok());
    auto files = Files();
    std::filesystem::remove_all(Delta());
    return files;
  }

  void ExpectTheSameBytesFromEveryKill(const std::vector<CompressOptions>& recipes) {
    for (const CompressOptions& options : recipes) {
      const auto expected = Uninterrupted(options);
      EXPECT_EQ(expected.size(), 5U);
      size_t n_kills = 0;
      for (size_t n = 0; RunAndKill(options, n); ++n, ++n_kills) {
        EXPECT_FALSE(std::filesystem::exists(Delta()));
        DF_ASSERT_OK(Resume(options));
        EXPECT_EQ(Files(), expected) << "killed before tensor " << n;
        EXPECT_EQ(Left(), "");
        std::filesystem::remove_all(Delta());
      }
      std::filesystem::remove_all(Delta());  // of the run that nothing killed
      EXPECT_EQ(n_kills, options.matrices && options.embeddings ? 21U : 42U);
    }
  }

  std::string Base() const { return directory_.Sub("base"); }
  std::string FineTune() const { return directory_.Sub("fine-tune"); }
  std::string Delta() const { return directory_.Sub("delta"); }

  TemporaryDirectory directory_;
};
using ResumeSlow = ResumeTest;

TEST_F(ResumeTest, AKillBeforeAnyTensorGivesTheSameBytesAfterResuming) {
  ExpectTheSameBytesFromEveryKill(
      {Recipe("rank1", "exact"), Recipe("planes2+lowrank:3", "int8"), Recipe("auto", "auto")});
}

TEST_F(ResumeSlow, AKillBeforeAnyTensorOfFittedCodesGivesTheSameBytes) {
  ExpectTheSameBytesFromEveryKill(
      {Fitted(Recipe("rank1", "exact")), Fitted(Recipe("rank1+lowrank:2", "auto")), Fitted(Recipe("auto", "auto"))});
}

// The embedding is the head here, and what feeds the head is gathered before the first step.
TEST_F(ResumeSlow, AKillBeforeAnyTensorOfATiedModelThatIsFittedGivesTheSameBytes) {
  WriteModel({.change = 0.1, .change_seed = 3}, FineTune());
  WriteModel({}, Base());
  CompressOptions options = Fitted(Recipe("rank1", "auto"));
  options.max_error.reset();
  options.budget_may_grow = true;
  const auto expected = Uninterrupted(options);
  size_t n_kills = 0;
  for (size_t n = 0; RunAndKill(options, n); ++n, ++n_kills) {
    DF_ASSERT_OK(Resume(options));
    EXPECT_EQ(Files(), expected) << "killed before tensor " << n;
    std::filesystem::remove_all(Delta());
  }
  EXPECT_EQ(n_kills, 40U);
}

TEST_F(ResumeTest, TwoKillsInARunGiveTheSameBytesToo) {
  for (CompressOptions options : {Recipe("auto", "auto"), Fitted(Recipe("auto", "auto"))}) {
    const auto expected = Uninterrupted(options);
    ASSERT_TRUE(RunAndKill(options, 8));
    options.resume = true;
    ASSERT_TRUE(RunAndKill(options, 30));
    DF_ASSERT_OK(Run(options));
    EXPECT_EQ(Files(), expected);
    std::filesystem::remove_all(Delta());
  }
}

TEST_F(ResumeTest, AnotherTextIsAnotherTask) {
  CompressOptions options = Fitted(Recipe("rank1", "exact"));
  Stop(options, 9);
  CompressOptions other = options;
  other.calibration->sequences[1][2] ^= 1;
  const Status status = Resume(other);
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find("calibration.tokens"), std::string::npos) << status.message();
  EXPECT_EQ(Resume(Recipe("rank1", "exact")).code(), StatusCode::kFailedPrecondition);
  DF_ASSERT_OK(Resume(options));
}

TEST_F(ResumeTest, WhatIsDoneIsNotDoneAgain) {
  CompressOptions options = Recipe("rank1", "exact");
  Stop(options, 12);
  const auto size = [&] { return std::filesystem::file_size(Left() + "/" + StepJournal::kSpoolName); };
  const auto done_bytes = size();
  EXPECT_GT(done_bytes, 0U);
  options.resume = true;
  Stop(options, 12);
  EXPECT_EQ(size(), done_bytes);
}

TEST_F(ResumeTest, DamageToWhatWasLeftCostsStepsAndNothingElse) {
  const CompressOptions options = Recipe("row", "exact");
  const auto expected = Uninterrupted(options);
  for (const char* name : {StepJournal::kFileName, StepJournal::kSpoolName}) {
    for (const double share : {0.1, 0.5, 0.77, 0.999}) {
      Stop(options, 15);
      const std::string path = Left() + "/" + name;
      const auto head = std::string(name) == StepJournal::kFileName ? uintmax_t{500} : uintmax_t{0};
      const auto keep = static_cast<uintmax_t>(share * static_cast<double>(std::filesystem::file_size(path)));
      std::filesystem::resize_file(path, std::max(keep, head));
      DF_ASSERT_OK(Resume(options));
      EXPECT_EQ(Files(), expected) << name << " " << share;
      std::filesystem::remove_all(Delta());
    }
  }
}

// As a kill while the delta is put together leaves them.
TEST_F(ResumeTest, HalfWrittenFilesAreNotPublished) {
  const CompressOptions options = Recipe("rank1", "exact");
  const auto expected = Uninterrupted(options);
  Stop(options, 20);
  for (const char* name : {"delta_model.safetensors.tmp-1-0", "delta_model.safetensors", "config.json", "stray"}) {
    DF_ASSERT_OK(WriteFileAtomically(Left() + "/" + name, "half"));
  }
  std::filesystem::create_directory(Left() + "/additional_chat_templates");
  DF_ASSERT_OK(Resume(options));
  EXPECT_EQ(Files(), expected);
}

TEST_F(ResumeTest, RefusesAnotherTaskNamingTheDifferenceAndKeepsTheWork) {
  const CompressOptions options = Recipe("rank1", "exact");
  const auto expected = Uninterrupted(options);
  Stop(options, 9);
  CompressOptions renamed = options;
  renamed.model_name = "another";
  const std::vector<std::pair<CompressOptions, std::string>> others = {
      {Recipe("row", "exact"), "codec.code was \"rank1\", is \"row\""},
      {Recipe("rank1", "int8"), "codec.embeddings was \"exact\", is \"int8\""},
      {Recipe("auto", "exact"), "codec.code was \"rank1\", is \"auto\""},
      {renamed, "model_name was \"fine-tune\", is \"another\""}};
  for (const auto& [other, difference] : others) {
    const Status status = Resume(other);
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
    EXPECT_NE(status.message().find(difference), std::string::npos) << status.message();
    EXPECT_NE(Left(), "");
  }
  DF_ASSERT_OK(Resume(options));
  EXPECT_EQ(Files(), expected);
}

TEST_F(ResumeTest, RefusesOtherInputs) {
  const CompressOptions options = Recipe("rank1", "exact");
  Stop(options, 9);
  WriteModel({.vocab = 29, .tied = false, .stores_head = true, .change = 0.2}, FineTune());
  const Status fine_tune = Resume(options);
  EXPECT_EQ(fine_tune.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(fine_tune.message().find("fine_tune_files"), std::string::npos) << fine_tune.message();
  WriteModel({.vocab = 24, .seed = 5}, Base());
  const Status base = Resume(options);
  EXPECT_NE(base.message().find("base_fingerprint"), std::string::npos) << base.message();
  EXPECT_FALSE(std::filesystem::exists(Delta()));
}

TEST_F(ResumeTest, WhatWasLeftIsNamedAndDiscardedOnlyWhenAllowed) {
  CompressOptions options = Recipe("rank1", "exact");
  Stop(options, 9);
  const Status status = Run(options);
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  for (const std::string& word : {Left(), std::string("--resume"), std::string("--force")}) {
    EXPECT_NE(status.message().find(word), std::string::npos) << status.message();
  }
  options.replace = true;
  DF_ASSERT_OK(Run(options));
  EXPECT_EQ(Left(), "");
}

TEST_F(ResumeTest, StartsAnewWhereNothingWasLeft) {
  const CompressOptions options = Recipe("rank1", "exact");
  const auto expected = Uninterrupted(options);
  Stop(options, 0);
  EXPECT_EQ(Left(), "") << "no tensor was done";
  DF_ASSERT_OK(Resume(options));
  EXPECT_EQ(Files(), expected);
}

TEST_F(ResumeTest, TwoAtOneTargetDoNotMeet) {
  const CompressOptions options = Recipe("rank1", "exact");
  const auto expected = Uninterrupted(options);
  CompressOptions first = options;
  first.on_progress = [&](const CompressOptions::Progress& progress) {
    if (progress.done_tensors != 7) return true;
    for (const bool resume : {false, true}) {
      CompressOptions second = options;
      second.replace = true;
      second.resume = resume;
      const Status status = Run(second, 1);
      EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
      EXPECT_NE(status.message().find("is being written by another"), std::string::npos) << status.message();
    }
    return true;
  };
  DF_ASSERT_OK(Run(first));
  EXPECT_EQ(Files(), expected);
}

// On a file system without locks two may run; the later one must not touch what the first made.
TEST_F(ResumeTest, ATargetThatAppearsMeanwhileIsKept) {
  CompressOptions options = Recipe("rank1", "exact");
  options.on_progress = [&](const CompressOptions::Progress& progress) {
    if (progress.done_tensors == 3) {
      std::filesystem::create_directory(Delta());
      DF_EXPECT_OK(WriteFileAtomically(Delta() + "/README.md", "of another"));
    }
    return true;
  };
  const Status status = Run(options);
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find("in the meantime"), std::string::npos) << status.message();
  EXPECT_EQ(Files(), (std::map<std::string, std::string>{{"README.md", "of another"}}));
}

}  // namespace
}  // namespace df
