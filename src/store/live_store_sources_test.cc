// Names that come from the command line, the state file and the watched directory.
#include <sys/resource.h>

#include <csignal>
#include <filesystem>

#include "store/live_store.h"
#include "store/live_store_fixture.h"
#include "testing/refusal.h"

namespace df {
namespace {

namespace fs = std::filesystem;
using testing::ExpectRefusal;
using testing::StatusOf;
using testing::ValueOrDie;

TEST_F(LiveStoreTest, BringsRuntimeRegistrationsBackAfterARestart) {
  const LiveStoreOptions options = {.state_file = Path("state-" + std::to_string(getpid()))};
  const std::string vanishing = CopyOf("adapter", "vanishing");
  {
    const auto store = Make(options);
    DF_EXPECT_OK(store->AddGiven({{"given", Path("delta2")}}, {}));
    ValueOrDie(store->Register("math", Path("delta"), {.root = "as given", .pinned = true}));
    ValueOrDie(store->Register("tone", vanishing, {}));
    ValueOrDie(store->Register("gone", Path("adapter"), {}));
    DF_EXPECT_OK(store->Retire("gone", ""));
    DF_EXPECT_OK(store->Pin("given", ""));
  }
  fs::rename(vanishing, vanishing + "-moved");
  {
    const auto store = Make(options);
    DF_EXPECT_OK(store->AddGiven({{"given", Path("delta2")}}, {}));
    store->RestoreAndWatch();
    EXPECT_EQ(store->FindOrNull("math")->root, "as given");
    EXPECT_TRUE(StatusFor(*store, "math").pinned);
    EXPECT_TRUE(StatusFor(*store, "given").pinned);
    EXPECT_EQ(store->FindOrNull("tone"), nullptr);
    EXPECT_EQ(store->FindOrNull("gone"), nullptr);
    EXPECT_NE(Warnings().find("tone"), std::string::npos);
  }
  fs::rename(vanishing + "-moved", vanishing);
  {
    const auto store = Make(options);
    store->RestoreAndWatch();
    EXPECT_NE(store->FindOrNull("tone"), nullptr);
  }
  fs::remove_all(vanishing);
  {
    const auto store = Make(options);
    store->RestoreAndWatch();
    DF_EXPECT_OK(store->Retire("tone", ""));  // gives up one that could not be restored
    EXPECT_EQ(store->Retire("tone", "").code(), StatusCode::kNotFound);
  }
}

// The call is refused, so nothing of it may come back.
TEST_F(LiveStoreTest, APinnedRegistrationIsKeptWholeOrNotAtAll) {
  const std::string state = Path("state-whole-" + std::to_string(getpid()));
  signal(SIGXFSZ, SIG_IGN);
  {
    const auto store = Make({.state_file = state});
    ValueOrDie(store->Register("math", Path("delta"), {}));
    const uint64_t size_bytes = fs::file_size(state);
    ValueOrDie(store->Register("math", Path("delta2"), {.replace = true}));
    rlimit limit = {};
    ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
    const rlim_t former = limit.rlim_cur;
    const uint64_t line_bytes = fs::file_size(state) - size_bytes;
    limit.rlim_cur = fs::file_size(state) + line_bytes + 8;
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    const auto refused = store->Register("math", Path("delta"), {.replace = true, .pinned = true});
    limit.rlim_cur = former;
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    EXPECT_EQ(StatusOf(refused).code(), StatusCode::kIo);
    EXPECT_FALSE(StatusFor(*store, "math").pinned);
  }
  const auto store = Make({.state_file = state});
  store->RestoreAndWatch();
  EXPECT_EQ(store->FindOrNull("math")->directory, ValueOrDie(OpenVariant(*base_.weights, Path("delta2")))->directory);
  EXPECT_FALSE(StatusFor(*store, "math").pinned);
}

TEST_F(LiveStoreTest, FollowsAWatchedDirectory) {
  const std::string watched = Path("watched");
  fs::create_directories(watched);
  const auto store = Make({.variant_dir = watched});
  DF_EXPECT_OK(store->AddGiven({{"given", Path("delta")}}, {}));
  store->RestoreAndWatch();
  CopyOf("adapter", "watched/tone");
  ASSERT_TRUE(Eventually([&] { return store->FindOrNull("tone") != nullptr; }));
  const auto first = store->FindOrNull("tone");
  fs::rename(watched + "/tone", Path("old-tone"));
  fs::rename(CopyOf("delta2", "next-tone"), watched + "/tone");
  EXPECT_TRUE(Eventually([&] {
    const auto now = store->FindOrNull("tone");
    return now != nullptr && now->generation != first->generation;
  }));
  CopyOf("delta2", "watched/given");
  EXPECT_TRUE(Eventually([&] { return Warnings().find("taken") != std::string::npos; }));
  EXPECT_NE(store->FindOrNull("given")->generation, store->FindOrNull("tone")->generation);
  fs::remove_all(watched + "/tone");
  EXPECT_TRUE(Eventually([&] { return store->FindOrNull("tone") == nullptr; }));
  FlipLastBit(CopyOf("delta", "spoilt") + "/delta_model.safetensors");
  fs::rename(Path("spoilt"), watched + "/spoilt");
  EXPECT_TRUE(Eventually([&] { return Warnings().find("digest") != std::string::npos; }));
  EXPECT_EQ(store->List().size(), 2u);
}

TEST_F(LiveStoreTest, LoadsWhatTheCommandLineGivesBeforeItServes) {
  const auto store = Make();
  DF_EXPECT_OK(store->AddGiven({{"a", Path("delta")}, {"b", Path("adapter")}, {"c", Path("delta")}}, {"b"}));
  for (const VariantStatus& status : store->Statuses()) EXPECT_EQ(status.state, ResidencyState::kResident);
  EXPECT_EQ(store->Stats().loads, 2u);
  EXPECT_TRUE(store->Ready());
  EXPECT_TRUE(StatusFor(*store, "b").pinned);
}

TEST_F(LiveStoreTest, RaisesAnUnsetBudgetForWhatTheCommandLineGives) {
  const uint64_t sum = BytesOf("delta") + BytesOf("delta2");
  const std::vector<GivenVariant> given = {{"a", Path("delta")}, {"b", Path("delta2")}};
  const auto raised = Make({.budget_bytes = 1, .raised_bytes = 10 * sum});
  DF_EXPECT_OK(raised->AddGiven(given, {}));
  EXPECT_EQ(raised->Stats().budget_bytes, sum);
  EXPECT_EQ(raised->Stats().resident_bytes, sum);
  const auto tight = Make({.budget_bytes = sum - 1});
  DF_EXPECT_OK(tight->AddGiven(given, {}));
  EXPECT_EQ(tight->Stats().loads, 1u);
  EXPECT_TRUE(WaitFor(*tight->FindOrNull("b")).granted());
  const auto tiny = Make({.budget_bytes = 1});
  ExpectRefusal(tiny->AddGiven(given, {}), StatusCode::kResourceExhausted, {"\"a\"", "variant-bytes"});
}

TEST_F(LiveStoreTest, TakesParentsFromTheCommandLineInAnyOrder) {
  const auto store = Make();
  DF_EXPECT_OK(store->AddGiven({{"tone", Path("adapter"), "math"}, {"math", Path("delta")}}, {"tone"}));
  EXPECT_TRUE(store->Ready());
  EXPECT_EQ(store->Stats().loads, 2u);
}

TEST_F(LiveStoreTest, FailsTheStartWithTheNameOfWhatIsBroken) {
  FlipLastBit(CopyOf("delta", "flipped") + "/delta_model.safetensors");
  const std::vector<GivenVariant> given = {{"sound", Path("delta2")}, {"broken", Path("flipped")}};
  ExpectRefusal(Make()->AddGiven(given, {}), StatusCode::kCorrupt, {"\"broken\"", "digest"});
  ExpectRefusal(Make({.budget_bytes = BytesOf("delta2")})->AddGiven(given, {}), StatusCode::kCorrupt,
                {"\"broken\"", "digest"});  // though it is not loaded
  ExpectRefusal(Make()->AddGiven({{"a", Path("delta")}, {"a", Path("delta2")}}, {}), StatusCode::kFailedPrecondition,
                {"\"a\"", "already"});
  ExpectRefusal(Make()->AddGiven({{"a", Path("delta")}}, {"b"}), StatusCode::kNotFound, {"\"b\""});
}

}  // namespace
}  // namespace df
