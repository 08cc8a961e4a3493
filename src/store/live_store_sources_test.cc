// Names that come from the command line, the state file and the watched directory.
#include <sys/resource.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <new>

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

TEST_F(LiveStoreTest, PinsOfWatchedNamesSurviveARestartAndAnAbsence) {
  const std::string watched = Path("watched-pins");
  fs::create_directories(watched);
  CopyOf("adapter", "watched-pins/tone");
  CopyOf("delta", "watched-pins/math");
  const LiveStoreOptions options = {.state_file = Path("state-pins-" + std::to_string(getpid())),
                                    .variant_dir = watched};
  {
    const auto store = Make(options);
    store->RestoreAndWatch();
    ASSERT_TRUE(Eventually([&] { return store->FindOrNull("tone") && store->FindOrNull("math"); }));
    DF_EXPECT_OK(store->Pin("tone", ""));
    DF_EXPECT_OK(store->Pin("math", ""));
    fs::rename(watched + "/tone", Path("tone-away"));
    ASSERT_TRUE(Eventually([&] { return store->FindOrNull("tone") == nullptr; }));
    fs::rename(Path("tone-away"), watched + "/tone");
    ASSERT_TRUE(Eventually([&] { return store->FindOrNull("tone") != nullptr; }));
    EXPECT_TRUE(StatusFor(*store, "tone").pinned);
  }
  {
    const auto store = Make(options);
    store->RestoreAndWatch();
    ASSERT_TRUE(Eventually([&] { return store->FindOrNull("tone") && store->FindOrNull("math"); }));
    EXPECT_TRUE(StatusFor(*store, "tone").pinned);
    EXPECT_TRUE(Eventually([&] { return StatusFor(*store, "tone").state == ResidencyState::kResident; }));
    DF_EXPECT_OK(store->Retire("tone", ""));  // by an operator: the pin goes with the name
    fs::rename(watched + "/math", Path("math-away"));
    ASSERT_TRUE(Eventually([&] { return store->FindOrNull("math") == nullptr; }));
    DF_EXPECT_OK(store->Unpin("math", ""));  // though it is away
    EXPECT_EQ(store->Unpin("math", "").code(), StatusCode::kNotFound);
    fs::rename(Path("math-away"), watched + "/math");
  }
  const auto store = Make(options);
  store->RestoreAndWatch();
  ASSERT_TRUE(Eventually([&] { return store->FindOrNull("tone") && store->FindOrNull("math"); }));
  EXPECT_FALSE(StatusFor(*store, "tone").pinned);
  EXPECT_FALSE(StatusFor(*store, "math").pinned);
}

TEST_F(LiveStoreTest, APinOfARegistrationThatCouldNotBeRestoredWaitsForTheName) {
  const LiveStoreOptions options = {.state_file = Path("state-late-" + std::to_string(getpid()))};
  const std::string late = CopyOf("adapter", "late");
  {
    const auto store = Make(options);
    ValueOrDie(store->Register("tone", late, {.pinned = true}));
  }
  fs::rename(late, late + "-away");
  const auto store = Make(options);
  store->RestoreAndWatch();
  EXPECT_EQ(store->FindOrNull("tone"), nullptr);
  fs::rename(late + "-away", late);
  ValueOrDie(store->Register("tone", late, {}));
  EXPECT_TRUE(StatusFor(*store, "tone").pinned);
}

TEST_F(LiveStoreTest, AWishForAPinThatDoesNotFitStillServesTheName) {
  const LiveStoreOptions options = {.budget_bytes = BytesOf("delta") + BytesOf("adapter") - 1,
                                    .state_file = Path("state-wish-" + std::to_string(getpid()))};
  const std::string late = CopyOf("delta", "late-wish");
  {
    const auto store = Make(options);
    ValueOrDie(store->Register("math", late, {.pinned = true}));
  }
  fs::rename(late, late + "-away");
  const auto store = Make(options);
  store->RestoreAndWatch();
  ValueOrDie(store->Register("tone", Path("adapter"), {}));
  fs::rename(late + "-away", late);
  const auto requested = ValueOrDie(store->Register("alias", Path("delta"), {}));  // it fits until tone is pinned
  DF_EXPECT_OK(store->Pin("tone", ""));
  ExpectRefusal(store->Register("math", late, {.pinned = true}), StatusCode::kResourceExhausted, {"pinned"});
  EXPECT_EQ(store->FindOrNull("math"), nullptr);
  ValueOrDie(store->Register("math", late, {}));
  EXPECT_FALSE(StatusFor(*store, "math").pinned);
  EXPECT_NE(Warnings().find("\"math\" cannot be pinned"), std::string::npos) << Warnings();
  DF_EXPECT_OK(store->Unpin("tone", ""));
  DF_EXPECT_OK(store->Pin("math", ""));
  EXPECT_TRUE(WaitFor(*requested).granted());
}

TEST_F(LiveStoreTest, AllPinsOfTheStartAreAwaitedAndLaterOnesAreNot) {
  Gate gate;
  const auto store = Make();
  DF_EXPECT_OK(store->AddGiven({{"given", Path("delta2")}}, {"given"}));
  EXPECT_TRUE(store->Ready());
  store->SetBusyProbe(gate.Probe());
  ValueOrDie(store->Register("given", Path("delta"), {.replace = true}));  // a roll-out
  ASSERT_TRUE(Eventually([&] { return gate.entered(); }));
  EXPECT_NE(StatusFor(*store, "given").state, ResidencyState::kResident);
  EXPECT_TRUE(store->Ready());
  gate.Open();
  const std::string path = CopyOf("delta2", "flipped-pin") + "/delta_model.safetensors";
  const auto broken = ValueOrDie(store->Register("broken", Path("flipped-pin"), {}));
  fs::resize_file(path, 4096);
  DF_EXPECT_OK(store->Unpin("given", ""));
  DF_EXPECT_OK(store->Pin("broken", ""));
  ASSERT_TRUE(Eventually([&] { return StatusFor(*store, "broken").state == ResidencyState::kFailed; }));
  EXPECT_TRUE(store->Ready());
}

TEST_F(LiveStoreTest, APinOfTheStartMayNameWhatIsWatchedOrRestored) {
  const std::string watched = Path("watched-start");
  fs::create_directories(watched);
  CopyOf("adapter", "watched-start/tone");
  const LiveStoreOptions options = {.state_file = Path("state-start-" + std::to_string(getpid())),
                                    .variant_dir = watched};
  {
    const auto store = Make(options);
    ValueOrDie(store->Register("math", Path("delta"), {}));
  }
  Gate gate;
  const auto store = Make(options);
  store->SetBusyProbe(gate.Probe());
  DF_EXPECT_OK(store->AddGiven({}, {"math", "tone", "mistyped"}));
  EXPECT_FALSE(store->Ready());
  store->RestoreAndWatch();
  ASSERT_TRUE(Eventually([&] { return store->FindOrNull("tone") != nullptr; }));
  EXPECT_FALSE(store->Ready());  // nothing is loaded yet
  gate.Open();
  EXPECT_TRUE(Eventually([&] { return store->Ready(); }));
  for (const std::string name : {"math", "tone"}) {
    EXPECT_TRUE(StatusFor(*store, name).pinned);
    EXPECT_EQ(StatusFor(*store, name).state, ResidencyState::kResident);
  }
  EXPECT_NE(Warnings().find("\"mistyped\""), std::string::npos) << Warnings();
}

TEST_F(LiveStoreTest, APinOfTheStartThatCannotBeLoadedHoldsNobodyUp) {
  const LiveStoreOptions options = {.state_file = Path("state-broken-" + std::to_string(getpid()))};
  CopyOf("delta", "broken-start");
  {
    const auto store = Make(options);
    ValueOrDie(store->Register("math", Path("broken-start"), {}));
  }
  const auto store = Make(options);
  store->SetBusyProbe([]() -> bool { throw std::bad_alloc(); });
  DF_EXPECT_OK(store->AddGiven({}, {"math"}));
  EXPECT_FALSE(store->Ready());
  store->RestoreAndWatch();
  EXPECT_TRUE(Eventually([&] { return store->Ready(); }));
  EXPECT_NE(Warnings().find("\"math\""), std::string::npos) << Warnings();
  EXPECT_NE(Warnings().find("memory"), std::string::npos) << Warnings();
}

TEST_F(LiveStoreTest, WatchesOnWhenMemoryIsShortForAMoment) {
  const std::string watched = Path("watched-short");
  fs::create_directories(watched);
  CopyOf("foreign", "watched-short/foreign");
  std::atomic<int> n_thrown{0};
  LiveStoreOptions options = {.look_every_ms = 5, .variant_dir = watched, .warn = [&](const std::string&) {
                                if (n_thrown < 3) {
                                  ++n_thrown;
                                  throw std::bad_alloc();
                                }
                              }};
  const auto store = ValueOrDie(LiveStore::Create(base_, options));
  store->RestoreAndWatch();
  ASSERT_TRUE(Eventually([&] { return n_thrown > 0; }));
  CopyOf("adapter", "watched-short/tone");
  EXPECT_TRUE(Eventually([&] { return store->FindOrNull("tone") != nullptr; }));
}

TEST_F(LiveStoreTest, TakesWhatIsWatchedWhenTheReasonAgainstItHasPassed) {
  const std::string watched = Path("watched-later");
  fs::create_directories(watched);
  const auto store = Make({.variant_dir = watched});
  ValueOrDie(store->Register("tone", Path("delta"), {}));
  CopyOf("adapter", "watched-later/tone");
  store->RestoreAndWatch();
  EXPECT_TRUE(Eventually([&] { return Warnings().find("taken") != std::string::npos; }));
  DF_EXPECT_OK(store->Retire("tone", ""));
  EXPECT_TRUE(Eventually([&] { return store->FindOrNull("tone") != nullptr; }));
  EXPECT_EQ(Warnings().find("taken"), Warnings().rfind("taken")) << Warnings();  // said once
}

TEST_F(LiveStoreTest, TakesNothingFromOutsideTheWatchedDirectory) {
  const std::string watched = Path("watched-confined");
  fs::create_directories(watched);
  fs::create_directory_symlink(Path("adapter"), watched + "/outside");
  CopyOf("adapter", "watched-confined/with-link");
  testing::WriteText(Path("elsewhere.jinja"), "{{ messages }}");
  fs::remove(watched + "/with-link/chat_template.jinja");
  fs::create_symlink(Path("elsewhere.jinja"), watched + "/with-link/chat_template.jinja");
  CopyOf("adapter", "watched-confined/.v1");
  fs::create_directory_symlink(".v1", watched + "/latest");
  fs::create_directories(watched + "/unused");
  const auto store = Make({.variant_dir = watched});
  store->RestoreAndWatch();
  ASSERT_TRUE(Eventually([&] { return store->FindOrNull("latest") != nullptr; }));
  ASSERT_TRUE(Eventually([&] { return Warnings().find("/unused is left out: ") != std::string::npos; }));
  for (const std::string name : {"outside", "with-link"}) {
    EXPECT_EQ(store->FindOrNull(name), nullptr);
    const std::string said = watched + "/" + name + " leads out of the directory of --variant-dir";
    EXPECT_NE(Warnings().find(said), std::string::npos) << Warnings();
    EXPECT_EQ(Warnings().find(said), Warnings().rfind(said)) << Warnings();
  }
  fs::remove(watched + "/with-link/chat_template.jinja");
  EXPECT_TRUE(Eventually([&] { return store->FindOrNull("with-link") != nullptr; }));
}

TEST_F(LiveStoreTest, SaysThatFilesBeyondAReadersLimitsAreUnsupported) {
  const auto store = Make({.budget_bytes = 1});
  const std::string deep = std::string(100, '[') + std::string(100, ']');
  for (const auto& [from, file] : {std::pair{"delta", "delta_config.json"}, std::pair{"adapter", "adapter_config.json"},
                                   std::pair{"adapter", "tokenizer_config.json"}}) {
    const std::string directory = CopyOf(from, std::string("deep-") + file);
    testing::WriteText(directory + "/" + file, deep);
    ExpectRefusal(store->Register("deep", directory, {}), StatusCode::kUnsupported, {"nested deeper"});
  }
  ExpectRefusal(store->Register("large", Path("delta"), {}), StatusCode::kResourceExhausted, {"--variant-bytes"});
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

TEST_F(LiveStoreTest, LoadsOfTheCommandLineWhatFitsWithItsParents) {
  const uint64_t delta = BytesOf("delta"), delta2 = BytesOf("delta2"), adapter = BytesOf("adapter");
  const std::vector<GivenVariant> given = {{"a", Path("delta")}, {"p", Path("delta2")}, {"c", Path("adapter"), "p"}};
  for (int i = 0; i < 10; ++i) {
    const auto store = Make({.budget_bytes = delta + adapter});
    DF_EXPECT_OK(store->AddGiven(given, {}));
    EXPECT_EQ(StatusFor(*store, "a").state, ResidencyState::kResident);
    EXPECT_EQ(store->Stats().loads, 1u);
  }
  const auto pinned = Make({.budget_bytes = std::max(delta, delta2 + adapter)});
  DF_EXPECT_OK(pinned->AddGiven(given, {"a"}));
  EXPECT_EQ(StatusFor(*pinned, "a").state, ResidencyState::kResident);
  EXPECT_NE(Warnings().find("\"c\""), std::string::npos) << Warnings();  // cannot be had beside that pin
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
