#include "store/directory_watch.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "testing/tiny_family.h"

namespace df {
namespace {

namespace fs = std::filesystem;
using testing::ValueOrDie;
using Kind = WatchedChange::Kind;

class DirectoryWatchTest : public ::testing::Test {
 protected:
  // "+name" appeared, "~name" replaced, "-name" gone.
  std::vector<std::string> Look() {
    std::vector<std::string> found;
    for (const WatchedChange& change : ValueOrDie(watch_.Look())) {
      const char* const mark = change.kind == Kind::kAppeared ? "+" : change.kind == Kind::kReplaced ? "~" : "-";
      found.push_back(mark + change.name);
    }
    return found;
  }
  void WriteVariant(const std::string& name, const std::string& content) {
    fs::create_directories(directory_ / name);
    testing::WriteText(directory_ / name + "/adapter_config.json", content);
  }
  static std::vector<std::string> Only(const std::string& change) { return {change}; }

  testing::TemporaryDirectory directory_{"deltafold-directory-watch-test"};
  DirectoryWatch watch_{directory_ / ""};
};

TEST_F(DirectoryWatchTest, TakesAVariantThatStandsStill) {
  WriteVariant("a", "{}");
  EXPECT_TRUE(Look().empty());
  EXPECT_EQ(Look(), Only("+a"));
  EXPECT_TRUE(Look().empty());
}

TEST_F(DirectoryWatchTest, WaitsWhileADirectoryIsBeingWritten) {
  fs::create_directories(directory_ / "a");
  EXPECT_TRUE(Look().empty());
  testing::WriteText(directory_ / "a/adapter_model.safetensors", "half");
  EXPECT_TRUE(Look().empty());
  EXPECT_TRUE(Look().empty());  // no configuration yet
  testing::WriteText(directory_ / "a/adapter_config.json", "{}");
  EXPECT_TRUE(Look().empty());
  testing::WriteText(directory_ / "a/adapter_model.safetensors", "half and a half");
  EXPECT_TRUE(Look().empty());
  EXPECT_EQ(Look(), Only("+a"));
}

TEST_F(DirectoryWatchTest, SeesAReplacementByRenameAndAWritingInPlace) {
  WriteVariant("a", "{}");
  Look(), Look();
  WriteVariant(".next", "{ }");
  fs::rename(directory_ / "a", directory_ / ".old");
  fs::rename(directory_ / ".next", directory_ / "a");
  EXPECT_TRUE(Look().empty());
  EXPECT_EQ(Look(), Only("~a"));
  WriteVariant("a", "{  }");
  EXPECT_TRUE(Look().empty());
  EXPECT_EQ(Look(), Only("~a"));
}

TEST_F(DirectoryWatchTest, FollowsALinkThatIsTurned) {
  fs::create_directories(directory_ / ".v1");
  fs::create_directories(directory_ / ".v2");
  testing::WriteText(directory_ / ".v1/adapter_config.json", "{}");
  testing::WriteText(directory_ / ".v2/adapter_config.json", "{}");
  fs::create_directory_symlink(directory_ / ".v1", directory_ / "latest");
  Look();
  EXPECT_EQ(Look(), Only("+latest"));
  fs::create_directory_symlink(directory_ / ".v2", directory_ / ".latest");
  fs::rename(directory_ / ".latest", directory_ / "latest");
  EXPECT_TRUE(Look().empty());
  EXPECT_EQ(Look(), Only("~latest"));
}

TEST_F(DirectoryWatchTest, TellsWhatIsGoneWhenItStaysAway) {
  WriteVariant("a", "{}");
  WriteVariant("never-stood-still", "{}");
  Look(), Look();
  WriteVariant("b", "{}");
  Look();
  fs::remove_all(directory_ / "a");
  fs::remove_all(directory_ / "b");
  EXPECT_TRUE(Look().empty());
  EXPECT_EQ(Look(), Only("-a"));
  WriteVariant("a", "{}");
  EXPECT_TRUE(Look().empty());
  EXPECT_EQ(Look(), Only("+a"));
}

TEST_F(DirectoryWatchTest, AMomentWithoutItIsNoRemoval) {
  WriteVariant("a", "{}");
  Look(), Look();
  fs::rename(directory_ / "a", directory_ / ".a");
  EXPECT_TRUE(Look().empty());
  fs::rename(directory_ / ".a", directory_ / "a");
  EXPECT_TRUE(Look().empty());
  EXPECT_TRUE(Look().empty());
}

TEST_F(DirectoryWatchTest, WhatCannotBeLookedAtIsNotGone) {
  WriteVariant("a", "{}");
  Look(), Look();
  const std::string config = directory_ / "a/adapter_config.json";
  fs::rename(config, directory_ / ".kept");
  fs::create_symlink("nowhere", config);  // as a file that the file system cannot read for a while
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(Look().empty());
  fs::remove(config);
  fs::rename(directory_ / ".kept", config);
  EXPECT_TRUE(Look().empty());
  EXPECT_EQ(Look(), Only("~a"));  // its directory was written
  fs::rename(directory_ / "a", directory_ / ".a");
  fs::create_directory_symlink("a", directory_ / "a");  // in a circle: it is there, and it cannot be entered
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(Look().empty());
  fs::remove(directory_ / "a");
  EXPECT_TRUE(Look().empty());
  EXPECT_EQ(Look(), Only("-a"));
}

TEST_F(DirectoryWatchTest, TellsOnceOfWhatStandsThereUnused) {
  fs::create_directories(directory_ / "model");
  testing::WriteText(directory_ / "model/config.json", "{}");
  fs::create_directories(directory_ / "empty");
  testing::WriteText(directory_ / "notes", "of the operator");
  fs::create_symlink("nowhere", directory_ / "dangling");
  fs::create_directory_symlink("circle", directory_ / "circle");
  WriteVariant("taken", "{}");
  testing::WriteText(directory_ / ".hidden", "");
  std::map<std::string, std::string> told;
  const auto look = [&](uint64_t n) {
    for (uint64_t i = 0; i < n; ++i) {
      ValueOrDie(watch_.Look());
      for (const WatchedMisfit& one : watch_.misfits()) {
        EXPECT_TRUE(told.emplace(fs::path(one.directory).filename().string(), one.why).second) << one.directory;
      }
    }
  };
  look(DirectoryWatch::kLooksToTell - 1);
  EXPECT_TRUE(told.empty());
  look(3 * DirectoryWatch::kLooksToTell);
  const std::map<std::string, std::string> reasons = {{"model", "full model"},
                                                      {"empty", "delta_config.json"},
                                                      {"notes", "not a directory"},
                                                      {"dangling", "link to nothing"},
                                                      {"circle", "cannot be looked at"}};
  ASSERT_EQ(told.size(), reasons.size());
  for (const auto& [name, why] : reasons)
    EXPECT_NE(told[name].find(why), std::string::npos) << name << ": " << told[name];
  // A change is news, of that one alone.
  told.clear();
  testing::WriteText(directory_ / "empty/half", "written");
  look(2 * DirectoryWatch::kLooksToTell);
  EXPECT_EQ(told.size(), 1U);
  EXPECT_TRUE(told.contains("empty"));
}

TEST_F(DirectoryWatchTest, ChangesNothingWhenTheDirectoryCannotBeRead) {
  DirectoryWatch absent(directory_ / "absent");
  EXPECT_EQ(testing::StatusOf(absent.Look()).code(), StatusCode::kIo);
}

}  // namespace
}  // namespace df
