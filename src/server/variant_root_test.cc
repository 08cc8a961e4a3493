#include "server/variant_root.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "testing/status_matchers.h"
#include "testing/temporary_directory.h"

namespace df::server {
namespace {

namespace fs = std::filesystem;
using testing::TemporaryDirectory;
using testing::ValueOrDie;

// DIR/root is the root, DIR/elsewhere is not.
class VariantRootTest : public ::testing::Test {
 protected:
  VariantRootTest() {
    Fill("root/sql");
    Fill("root/org/math");
    Fill("elsewhere");
    Fill("root-too");
  }
  std::string Path(const std::string& path) const { return directory_.path() + "/" + path; }
  void Fill(const std::string& folder) const {
    fs::create_directories(Path(folder));
    std::ofstream(Path(folder) + "/delta_config.json") << "{}";
  }
  VariantRoot Root() const { return ValueOrDie(VariantRoot::Open(Path("root"))); }
  void ExpectRefused(const std::string& given, StatusCode code, const std::string& part) const {
    const Result<std::string> resolved = Root().Resolve(given);
    ASSERT_FALSE(resolved.ok()) << given << " -> " << *resolved;
    EXPECT_EQ(resolved.status().code(), code) << given << ": " << resolved.status().message();
    EXPECT_NE(resolved.status().message().find(part), std::string::npos) << resolved.status().message();
    EXPECT_EQ(resolved.status().message().find(directory_.path()), std::string::npos) << resolved.status().message();
  }

  TemporaryDirectory directory_;
};

TEST_F(VariantRootTest, TakesPathsUnderItAbsoluteAndRelative) {
  const std::string canonical = fs::canonical(Path("root/sql")).string();
  EXPECT_EQ(ValueOrDie(Root().Resolve("sql")), canonical);
  EXPECT_EQ(ValueOrDie(Root().Resolve("./org/../sql/")), canonical);
  EXPECT_EQ(ValueOrDie(Root().Resolve(Path("root/sql"))), canonical);
  EXPECT_EQ(ValueOrDie(Root().Resolve(Path("root/sql/"))), canonical);
  EXPECT_EQ(ValueOrDie(Root().Resolve("org/math")), fs::canonical(Path("root/org/math")).string());
  fs::create_directory_symlink(Path("root"), Path("by-another-name"));
  EXPECT_EQ(ValueOrDie(Root().Resolve(Path("by-another-name/sql"))), canonical);
}

TEST_F(VariantRootTest, RefusesWhatLiesElsewhere) {
  for (const char* given : {"..", "../elsewhere", "sql/../../elsewhere", "/", "/etc", "/proc/self", "../root-too",
                            "../nothing", "/nothing/at/all"}) {
    ExpectRefused(given, StatusCode::kFailedPrecondition, "--variant-root");
  }
  ExpectRefused(Path("elsewhere"), StatusCode::kFailedPrecondition, "--variant-root");
  ExpectRefused(Path("root-too"), StatusCode::kFailedPrecondition, "--variant-root");
}

TEST_F(VariantRootTest, SaysOfNothingOutsideWhetherItExists) {
  fs::create_directory_symlink(directory_.path(), Path("root/out"));
  for (const auto& [there, absent] : {std::pair{"../elsewhere", "../absent"}, std::pair{"/etc", "/no-such-thing"},
                                      std::pair{"out/elsewhere", "out/absent"}}) {
    EXPECT_EQ(Root().Resolve(there).status().message(), Root().Resolve(absent).status().message()) << there;
  }
}

TEST_F(VariantRootTest, RefusesLinksThatLeadOut) {
  fs::create_directory_symlink(Path("elsewhere"), Path("root/out"));
  fs::create_directory_symlink("../elsewhere", Path("root/out-by-dots"));
  ExpectRefused("out", StatusCode::kFailedPrecondition, "leads out");
  ExpectRefused("out-by-dots", StatusCode::kFailedPrecondition, "leads out");
  fs::create_symlink(Path("elsewhere/delta_config.json"), Path("root/sql/tensors.safetensors"));
  ExpectRefused("sql", StatusCode::kFailedPrecondition, "leads out");
  fs::create_directory_symlink(Path("elsewhere"), Path("root/org/math/inner"));
  ExpectRefused("org/math", StatusCode::kFailedPrecondition, "leads out");
}

TEST_F(VariantRootTest, FollowsLinksThatStayInside) {
  // As the hub's cache and Kubernetes' volumes lay out their files.
  fs::create_directories(Path("root/blobs"));
  std::ofstream(Path("root/blobs/abc")) << "{}";
  fs::create_directories(Path("root/snapshots/1"));
  fs::create_symlink("../../blobs/abc", Path("root/snapshots/1/adapter_config.json"));
  EXPECT_EQ(ValueOrDie(Root().Resolve("snapshots/1")), fs::canonical(Path("root/snapshots/1")).string());
  fs::create_directories(Path("root/volume/..2026"));
  fs::create_directory_symlink("..2026", Path("root/volume/..data"));
  EXPECT_TRUE(Root().Resolve("volume").ok());
  fs::create_directory_symlink(".", Path("root/volume/itself"));
  EXPECT_TRUE(Root().Resolve("volume").ok());
}

TEST_F(VariantRootTest, SaysWhatWasGivenSoThatALaterProcessFindsIt) {
  fs::create_directory_symlink("sql", Path("root/current"));
  fs::create_directory_symlink(Path("root"), Path("mounted"));
  const VariantRoot root = ValueOrDie(VariantRoot::Open(Path("mounted")));
  EXPECT_EQ(ValueOrDie(root.Resolve("current")), fs::canonical(Path("root/sql")).string());
  EXPECT_EQ(root.AsGiven("current"), Path("mounted/current"));  // no link is followed
  EXPECT_EQ(root.AsGiven(Path("root/current")), Path("root/current"));
  EXPECT_EQ(root.AsGiven("org/of-the-hub"), "org/of-the-hub");
  for (const char* given : {"current", "org/math"}) {
    EXPECT_EQ(ValueOrDie(root.Resolve(root.AsGiven(given))), ValueOrDie(root.Resolve(given)));
  }
}

TEST_F(VariantRootTest, RefusesWhatIsNoFile) {
  ASSERT_EQ(mkfifo(Path("root/sql/adapter_config.json").c_str(), 0600), 0);
  ExpectRefused("sql", StatusCode::kFailedPrecondition, "no regular file: adapter_config.json");
  ASSERT_EQ(mkfifo(Path("root/fifo").c_str(), 0600), 0);
  ExpectRefused("fifo", StatusCode::kFailedPrecondition, "not a directory");
  fs::create_symlink("/dev/zero", Path("root/org/math/tensors.safetensors"));
  ExpectRefused("org/math", StatusCode::kFailedPrecondition, "leads out");
  ExpectRefused("sql/delta_config.json", StatusCode::kFailedPrecondition, "not a directory");
}

TEST_F(VariantRootTest, RefusesWhatCanBeNoPathAndWhatIsNotThere) {
  ExpectRefused("", StatusCode::kInvalidArgument, "lora_path");
  ExpectRefused(std::string("sql\0x", 5), StatusCode::kInvalidArgument, "NUL");
  ExpectRefused(std::string(10'000, 'a'), StatusCode::kInvalidArgument, "4096");
  ExpectRefused("absent", StatusCode::kNotFound, "cannot be found");
  ExpectRefused("org/absent", StatusCode::kNotFound, "cannot be found");
  ExpectRefused(Path("root/absent"), StatusCode::kNotFound, "cannot be found");
  fs::create_symlink("circle", Path("root/circle"));
  EXPECT_FALSE(Root().Resolve("circle").ok());
}

TEST_F(VariantRootTest, BoundsTheFilesItLooksAt) {
  for (int i = 0; i < 5000; ++i) std::ofstream(Path("root/sql/f" + std::to_string(i)));
  ExpectRefused("sql", StatusCode::kFailedPrecondition, "4096");
}

TEST_F(VariantRootTest, TakesAHubIdOnlyFromACacheUnderIt) {
  const auto snapshot = [](const std::string& hub) { return hub + "/models--org--name/snapshots/abc"; };
  fs::create_directories(snapshot(Path("root/hub")));
  fs::create_directories(snapshot(Path("hub-outside")));
  setenv("HF_HUB_CACHE", Path("root/hub").c_str(), 1);
  EXPECT_EQ(ValueOrDie(Root().Resolve("org/name")), fs::canonical(snapshot(Path("root/hub"))).string());
  setenv("HF_HUB_CACHE", Path("hub-outside").c_str(), 1);
  ExpectRefused("org/name", StatusCode::kNotFound, "cannot be found");  // as if it were not there
  unsetenv("HF_HUB_CACHE");
}

TEST_F(VariantRootTest, TellsNothingOfTheDirectoryThatTheServerWasStartedIn) {
  const fs::path before = fs::current_path();
  fs::current_path(directory_.path());
  ExpectRefused("elsewhere", StatusCode::kNotFound, "cannot be found");
  fs::current_path(before);
}

TEST_F(VariantRootTest, MustBeADirectory) {
  EXPECT_EQ(VariantRoot::Open(Path("absent")).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(VariantRoot::Open(Path("root/sql/delta_config.json")).status().code(), StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace df::server
