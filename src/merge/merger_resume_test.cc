// Merges that end before their time, and go on.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "format/step_journal.h"
#include "merge/models_fixture.h"

namespace df::merge {
namespace {

using testing::ExpectRefusal;
using testing::WriteModel;

constexpr char kLinear[] = "merge_method: linear\nparameters: {weight: 1}\nmodels: [{model: @ft0}, {model: @ft1}]\n";
constexpr char kOpcm[] = "merge_method: opcm\nbase_model: @base\nmodels: [{model: @ft0}, {model: @ft1}]\n";
constexpr char kSvd[] =
    "merge_method: svd_average\nbase_model: @base\nparameters: {rank: 3}\nmodels: [{model: @ft0}, {model: @ft1}]\n";

class MergerResumeTest : public ModelsTest {
 protected:
  void SetUp() override {
    base_.n_layers = 1;
    ModelsTest::SetUp();
  }

  // A step a tensor, in shards of a few.
  MergerOptions Options() const { return {.max_shard_bytes = 3000, .step_bytes = 0}; }
  Status Resume(const Recipe& recipe) {
    MergerOptions options = Options();
    options.resume = true;
    return Run(recipe, options).status();
  }

  // Runs in a process of its own, which kills itself before the n-th tensor (from 0); false when there are not so many.
  bool RunAndKill(const Recipe& recipe, size_t n, bool resume = false) {
    const pid_t child = fork();
    if (child == 0) {
      MergerOptions options = Options();
      options.resume = resume;
      options.on_progress = [n](const StreamProgress& progress) {
        if (progress.done_tensors == n) kill(getpid(), SIGKILL);
        return true;
      };
      _exit(Run(recipe, options, 1).ok() ? 0 : 1);
    }
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) return true;
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return false;
  }
  void Stop(const Recipe& recipe, size_t n_tensors) {
    MergerOptions options = Options();
    options.on_progress = [n_tensors](const StreamProgress& p) { return p.done_tensors < n_tensors; };
    EXPECT_EQ(Run(recipe, options).status().code(), StatusCode::kCancelled);
  }
  std::map<std::string, std::string> Uninterrupted(const Recipe& recipe) {
    EXPECT_TRUE(Run(recipe, Options()).ok());
    auto files = FilesOf(Sub("out"));
    std::filesystem::remove_all(Sub("out"));
    return files;
  }
};

TEST_F(MergerResumeTest, AKillBeforeAnyTensorGivesTheSameBytesAfterResuming) {
  for (const char* yaml : {kLinear, kSvd, kOpcm}) {
    const Recipe recipe = Read(yaml);
    const auto expected = Uninterrupted(recipe);
    size_t n_kills = 0;
    for (size_t n = 0; RunAndKill(recipe, n); ++n, ++n_kills) {
      EXPECT_FALSE(std::filesystem::exists(Sub("out")));
      DF_ASSERT_OK(Resume(recipe));
      EXPECT_EQ(FilesOf(Sub("out")), expected) << "killed before tensor " << n;
      EXPECT_EQ(Left(), "");
      std::filesystem::remove_all(Sub("out"));
    }
    EXPECT_EQ(n_kills, yaml == kOpcm ? 22U : 11U);
    std::filesystem::remove_all(Sub("out"));
  }
}

TEST_F(MergerResumeTest, TwoKillsInARunGiveTheSameBytesToo) {
  const Recipe recipe = Read(kOpcm);
  const auto expected = Uninterrupted(recipe);
  ASSERT_TRUE(RunAndKill(recipe, 5));
  ASSERT_TRUE(RunAndKill(recipe, 16, true));
  DF_ASSERT_OK(Resume(recipe));
  EXPECT_EQ(FilesOf(Sub("out")), expected);
}

TEST_F(MergerResumeTest, WhatIsDoneIsNotDoneAgain) {
  const Recipe recipe = Read(kLinear);
  Stop(recipe, 7);
  // The input of a tensor that is done is not looked at again: the models are held open by nobody, so it may change
  // under the same name, size and time.
  MergerOptions options = Options();
  options.resume = true;
  std::vector<uint64_t> done;
  options.on_progress = [&](const StreamProgress& progress) {
    done.push_back(progress.done_bytes);
    return true;
  };
  const size_t journal = std::filesystem::file_size(Left() + "/" + StepJournal::kFileName);
  EXPECT_GT(journal, 500U);
  DF_ASSERT_OK(Run(recipe, options));
  EXPECT_EQ(done.size(), 11U);
}

TEST_F(MergerResumeTest, ACutJournalCostsStepsAndNothingElse) {
  for (const char* yaml : {kLinear, kOpcm}) {
    const Recipe recipe = Read(yaml);
    const auto expected = Uninterrupted(recipe);
    for (const double share : {0.3, 0.6, 0.9, 0.999}) {
      Stop(recipe, 9);
      const std::string path = Left() + "/" + StepJournal::kFileName;
      const auto size = static_cast<double>(std::filesystem::file_size(path));
      std::filesystem::resize_file(path, std::max<uintmax_t>(static_cast<uintmax_t>(share * size), 1200));
      DF_ASSERT_OK(Resume(recipe));
      EXPECT_EQ(FilesOf(Sub("out")), expected) << share;
      std::filesystem::remove_all(Sub("out"));
    }
  }
}

TEST_F(MergerResumeTest, AShardThatIsNotAsTheJournalHasItIsRefused) {
  const Recipe recipe = Read(kLinear);
  Stop(recipe, 9);
  for (const auto& entry : std::filesystem::directory_iterator(Left())) {
    if (entry.path().extension() == ".safetensors") std::filesystem::resize_file(entry.path(), 100);
  }
  ExpectRefusal(Resume(recipe), StatusCode::kCorrupt, {"shard", "--force"});
  MergerOptions options = Options();
  options.replace = true;
  DF_ASSERT_OK(Run(recipe, options));
  EXPECT_EQ(Left(), "");
}

TEST_F(MergerResumeTest, HalfWrittenFilesAreNotPublished) {
  const Recipe recipe = Read(kLinear);
  const auto expected = Uninterrupted(recipe);
  Stop(recipe, 9);
  for (const char* name : {"config.json", "stray", "model.safetensors.index.json.tmp-1-0"}) {
    DF_ASSERT_OK(WriteFileAtomically(Left() + "/" + name, "half"));
  }
  DF_ASSERT_OK(Resume(recipe));
  EXPECT_EQ(FilesOf(Sub("out")), expected);
}

TEST_F(MergerResumeTest, RefusesAnotherRecipeAndOtherInputsAndKeepsTheWork) {
  const Recipe recipe = Read(kLinear);
  const auto expected = Uninterrupted(recipe);
  Stop(recipe, 6);
  ExpectRefusal(Resume(Read(std::string(kLinear) + "out_dtype: float32\n")), StatusCode::kFailedPrecondition,
                {"recipe was", "--force"});
  EXPECT_NE(Left(), "");
  ExpectRefusal(Run(recipe, Options()), StatusCode::kFailedPrecondition, {"--resume", "--force"});
  DF_ASSERT_OK(Resume(recipe));
  EXPECT_EQ(FilesOf(Sub("out")), expected);
  std::filesystem::remove_all(Sub("out"));
  Stop(recipe, 6);
  testing::MadeModel other = FineTune(1);
  other.change = 0.3;
  WriteModel(other, Sub("ft1"));
  ExpectRefusal(Resume(recipe), StatusCode::kFailedPrecondition, {"inputs was"});
  EXPECT_FALSE(std::filesystem::exists(Sub("out")));
}

TEST_F(MergerResumeTest, TwoAtOneTargetDoNotMeet) {
  const Recipe recipe = Read(kLinear);
  MergerOptions first = Options();
  first.on_progress = [&](const StreamProgress& progress) {
    if (progress.done_tensors != 5) return true;
    for (const bool resume : {false, true}) {
      MergerOptions second = Options();
      second.replace = true;
      second.resume = resume;
      ExpectRefusal(Run(recipe, second), StatusCode::kFailedPrecondition, {"is being written by another"});
    }
    return true;
  };
  DF_ASSERT_OK(Run(recipe, first));
}

}  // namespace
}  // namespace df::merge
