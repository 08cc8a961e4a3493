// What a start makes of the state file.
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "store/live_store_fixture.h"

namespace df {
namespace {

namespace fs = std::filesystem;
using testing::ValueOrDie;

TEST_F(LiveStoreTest, GivesUpARestorationBetweenTwoNames) {
  const LiveStoreOptions options = {.state_file = Path("state-given-up-" + std::to_string(getpid()))};
  {
    const auto store = Make(options);
    for (const char* name : {"a", "b", "c"}) ValueOrDie(store->Register(name, Path("adapter"), {}));
  }
  int n_asked = 0;
  {
    const auto store = Make(options);
    EXPECT_FALSE(store->RestoreAndWatch({.gives_up = [&n_asked] { return ++n_asked == 2; }}));
    EXPECT_NE(store->FindOrNull("a"), nullptr);
    EXPECT_EQ(store->FindOrNull("b"), nullptr);
  }
  EXPECT_EQ(n_asked, 2);
  const auto store = Make(options);  // nothing is lost
  EXPECT_TRUE(store->RestoreAndWatch());
  EXPECT_EQ(store->List().size(), 4u);
}

TEST_F(LiveStoreTest, RestoresWhatTheGivenLinkLeadsToNow) {
  const LiveStoreOptions options = {.state_file = Path("state-links-" + std::to_string(getpid()))};
  const std::string link = Path("current"), first = fs::canonical(Path("delta")).string(),
                    second = fs::canonical(Path("delta2")).string();
  {
    const auto store = Make(options);
    fs::create_directory_symlink(first, link);
    ValueOrDie(store->Register("math", first, {.given = link}));  // as the load route: the checked place is opened
    EXPECT_EQ(store->FindOrNull("math")->directory, first);
  }
  fs::remove(link);
  fs::create_directory_symlink(second, link);
  std::vector<std::string> asked;
  const auto resolve = [&](const std::string& directory) -> Result<std::string> {
    asked.push_back(directory);
    return fs::canonical(directory).string();
  };
  for (int i = 0; i < 2; ++i) {  // a restart does not change what is kept
    const auto store = Make(options);
    EXPECT_TRUE(store->RestoreAndWatch({.resolve = resolve}));
    EXPECT_EQ(store->FindOrNull("math")->directory, second);
  }
  EXPECT_EQ(asked, (std::vector<std::string>{link, link}));
  const auto without_root = Make(options);
  EXPECT_TRUE(without_root->RestoreAndWatch());
  EXPECT_EQ(without_root->FindOrNull("math")->directory, second);
}

TEST_F(LiveStoreTest, LeavesOutWhatMayNotBeReadAnyMore) {
  const LiveStoreOptions options = {.state_file = Path("state-refused-" + std::to_string(getpid()))};
  {
    const auto store = Make(options);
    for (const char* name : {"inside", "outside"}) ValueOrDie(store->Register(name, Path("adapter"), {.given = name}));
  }
  {
    const auto store = Make(options);
    EXPECT_TRUE(store->RestoreAndWatch({.resolve = [](const std::string& directory) -> Result<std::string> {
      if (directory == "outside") return FailedPrecondition("it leads out");
      return Path("adapter");
    }}));
    EXPECT_NE(store->FindOrNull("inside"), nullptr);
    EXPECT_EQ(store->FindOrNull("outside"), nullptr);
    EXPECT_NE(Warnings().find("variant \"outside\", outside: it leads out"), std::string::npos) << Warnings();
  }
  const auto store = Make(options);  // its line stays
  EXPECT_TRUE(
      store->RestoreAndWatch({.resolve = [](const std::string&) -> Result<std::string> { return Path("adapter"); }}));
  EXPECT_NE(store->FindOrNull("outside"), nullptr);
}

}  // namespace
}  // namespace df
