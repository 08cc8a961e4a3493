#include "tools/soup_checkpoints.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/atomic_file.h"
#include "testing/made_checkpoint.h"
#include "testing/refusal.h"

namespace df::tools {
namespace {

namespace fs = std::filesystem;
using testing::ExpectRefusal;
using testing::ValueOrDie;

const FindOptions kAtOnce = {.settle_s = 0};

class SoupCheckpoints : public ::testing::Test {
 protected:
  std::string Write(const std::string& name, bool with_state = true) {
    testing::WriteModel({.change = 0.1}, directory_.Sub(name));
    if (with_state) {
      DF_EXPECT_OK(WriteFileAtomically(directory_.Sub(name) + "/trainer_state.json", "{}"));
    }
    return directory_.Sub(name);
  }
  FoundCheckpoints Find(const FindOptions& options = kAtOnce) const {
    return ValueOrDie(FindCheckpoints(directory_.path(), options));
  }
  std::string Reason(const FindOptions& options = kAtOnce) const {
    const FoundCheckpoints found = Find(options);
    EXPECT_TRUE(found.complete.empty());
    return found.waiting.size() == 1 ? found.waiting[0].reason : std::to_string(found.waiting.size()) + " waiting";
  }

  testing::TemporaryDirectory directory_;
};

TEST_F(SoupCheckpoints, StandInTheOrderOfTheirSteps) {
  for (const char* name : {"checkpoint-1000", "checkpoint-90", "run-2-step00200", "tmp-checkpoint-5", ".hidden-1"}) {
    Write(name);
  }
  fs::create_directories(directory_.Sub("runs"));
  Write("soup-1");
  FindOptions options = kAtOnce;
  options.except = directory_.Sub("soup-1");
  const FoundCheckpoints found = Find(options);
  ASSERT_EQ(found.complete.size(), 3U);
  EXPECT_TRUE(found.waiting.empty());
  const uint64_t steps[] = {90, 200, 1000};
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(found.complete[i].step, steps[i]);
  EXPECT_EQ(found.complete[1].name, "run-2-step00200");
}

TEST_F(SoupCheckpoints, WaitForEveryPartOfWhatATrainerWrites) {
  const std::string path = directory_.Sub("checkpoint-7");
  fs::create_directories(path);
  EXPECT_NE(Reason().find("config.json"), std::string::npos);
  Write("checkpoint-7", false);
  EXPECT_NE(Reason().find("trainer_state.json"), std::string::npos);
  FindOptions patient = kAtOnce;
  patient.stateless_s = 0;
  EXPECT_EQ(Find(patient).complete.size(), 1U) << "a program that writes none";
  DF_EXPECT_OK(WriteFileAtomically(path + "/trainer_state.json", "{}"));
  EXPECT_EQ(Find().complete.size(), 1U);
}

TEST_F(SoupCheckpoints, AreNotWholeAtAnyLengthButTheLast) {
  const std::string weights = Write("checkpoint-7") + "/model.safetensors";
  const std::string content = ValueOrDie(ReadFileBounded(weights, size_t{1} << 24));
  const size_t step = std::max<size_t>(1, content.size() / 61);
  for (size_t size = 0; size < content.size(); size += step) {
    DF_EXPECT_OK(WriteFileAtomically(weights, content.substr(0, size)));
    EXPECT_NE(Reason().find("not whole"), std::string::npos) << size;
  }
  DF_EXPECT_OK(WriteFileAtomically(weights, content.substr(0, content.size() - 1)));
  EXPECT_NE(Reason().find("not whole"), std::string::npos);
  fs::remove(weights);
  EXPECT_NE(Reason().find("not whole"), std::string::npos);
  DF_EXPECT_OK(WriteFileAtomically(weights, content));
  EXPECT_EQ(Find().complete.size(), 1U);
}

TEST_F(SoupCheckpoints, MissingShardsAreNotWhole) {
  const std::string path = Write("checkpoint-7");
  const std::string shard = path + "/model-00001-of-00002.safetensors";
  fs::rename(path + "/model.safetensors", shard);
  const auto file = ValueOrDie(SafetensorsFile::Open(shard));
  std::string index;
  for (const NamedTensor& tensor : file->tensors()) {
    index += (index.empty() ? "\"" : ", \"") + tensor.name + "\": \"model-00001-of-00002.safetensors\"";
  }
  const std::string begin = "{\"metadata\": {}, \"weight_map\": {";
  DF_EXPECT_OK(WriteFileAtomically(path + "/model.safetensors.index.json", begin + index + "}}"));
  EXPECT_EQ(Find().complete.size(), 1U);
  const std::string more = ", \"model.more\": \"model-00002-of-00002.safetensors\"}}";
  DF_EXPECT_OK(WriteFileAtomically(path + "/model.safetensors.index.json", begin + index + more));
  EXPECT_NE(Reason().find("model-00002-of-00002"), std::string::npos);
}

TEST_F(SoupCheckpoints, SettleBeforeTheyAreTaken) {
  Write("checkpoint-7");
  const FoundCheckpoints found = Find({.settle_s = 100});
  EXPECT_TRUE(found.complete.empty());
  ASSERT_EQ(found.waiting.size(), 1U);
  EXPECT_TRUE(found.waiting[0].is_settling);
  EXPECT_EQ(Find().complete.size(), 1U);
}

TEST_F(SoupCheckpoints, WithoutAStepAreNamed) {
  Write("final");
  EXPECT_NE(Reason().find("no step number"), std::string::npos);
  Write("step-99999999999999999999999");
  EXPECT_EQ(Find().waiting.size(), 2U);
}

TEST_F(SoupCheckpoints, OtherContentIsAnotherStamp) {
  const std::string path = Write("checkpoint-7");
  const FoundCheckpoint found = Find().complete.at(0);
  EXPECT_TRUE(IsUnchanged(found));
  DF_EXPECT_OK(WriteFileAtomically(path + "/trainer_state.json", "{\"a\": 1}"));
  EXPECT_TRUE(IsUnchanged(found)) << "not a weight";
  testing::WriteModel({.change = 0.1, .change_seed = 2}, path);
  EXPECT_FALSE(IsUnchanged(found));
  EXPECT_NE(Find().complete.at(0).stamp, found.stamp);
  fs::remove_all(path);
  EXPECT_FALSE(IsUnchanged(found));
}

TEST_F(SoupCheckpoints, OfNoDirectoryAreAnError) {
  ExpectRefusal(FindCheckpoints(directory_.Sub("none"), kAtOnce), StatusCode::kNotFound, {"none"});
  DF_EXPECT_OK(WriteFileAtomically(directory_.Sub("file"), "x"));
  ExpectRefusal(FindCheckpoints(directory_.Sub("file"), kAtOnce), StatusCode::kFailedPrecondition, {"file"});
}

}  // namespace
}  // namespace df::tools
