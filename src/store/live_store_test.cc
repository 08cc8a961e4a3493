#include "store/live_store.h"

#include <atomic>
#include <filesystem>
#include <new>
#include <numeric>
#include <thread>

#include "store/live_store_fixture.h"
#include "testing/refusal.h"

namespace df {
namespace {

namespace fs = std::filesystem;
using testing::ExpectRefusal;
using testing::StatusOf;
using testing::ValueOrDie;

TEST_F(LiveStoreTest, LoadsAVariantWhenItIsAskedForAndSaysSo) {
  std::atomic<int> n_wakes{0};
  const auto store = Make();
  store->SetWaker([&] { ++n_wakes; });
  const auto variant = ValueOrDie(store->Register("math", Path("delta"), {.root = "as given"}));
  EXPECT_EQ(variant->root, "as given");
  EXPECT_EQ(StatusFor(*store, "math").state, ResidencyState::kRegistered);
  EXPECT_EQ(store->Stats().reserved_bytes, 0u);
  variant->generation->CountRequest(SteadyClock().NowUs());
  const LeaseAttempt attempt = WaitFor(*variant);
  ASSERT_TRUE(attempt.granted());
  EXPECT_EQ(attempt.lease.weights()->digest, variant->generation->info().digest);
  EXPECT_TRUE(Eventually([&] { return n_wakes > 0; }));
  const VariantStatus status = StatusFor(*store, "math");
  EXPECT_EQ(status.state, ResidencyState::kResident);
  EXPECT_EQ(status.n_leases, 1u);
  EXPECT_EQ(status.bytes, attempt.lease.weights()->bytes);
  EXPECT_GT(status.load_seconds, 0);
  EXPECT_GT(status.requests_per_s, 0);
  EXPECT_GT(status.last_used_unix, 0);
  const StoreStats stats = store->Stats();
  EXPECT_EQ(stats.resident_bytes, attempt.lease.weights()->bytes);
  EXPECT_EQ(stats.loads, 1u);
  EXPECT_EQ(std::accumulate(stats.load_times.counts.begin(), stats.load_times.counts.end(), uint64_t{0}), 1u);
  EXPECT_EQ(stats.lookups, 1u);
  EXPECT_EQ(stats.hits, 0u);
  store->SetWaker({});
}

TEST_F(LiveStoreTest, AThousandWaitersAreOneLoad) {
  const auto store = Make();
  const auto variant = ValueOrDie(store->Register("math", Path("delta"), {}));
  std::vector<std::thread> threads;
  std::atomic<int> n_granted{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 250; ++i) n_granted += WaitFor(*variant).granted() ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(n_granted, 1000);
  EXPECT_EQ(store->Stats().loads, 1u);
  EXPECT_EQ(StatusFor(*store, "math").n_leases, 0u);
}

TEST_F(LiveStoreTest, TwoNamesOfOneContentShareOneCopy) {
  const auto store = Make();
  CopyOf("delta", "copy");
  const auto a = ValueOrDie(store->Register("a", Path("delta"), {.pinned = true}));
  const auto b = ValueOrDie(store->Register("b", Path("copy"), {}));
  EXPECT_EQ(a->generation, b->generation);
  ASSERT_TRUE(WaitFor(*b).granted());
  EXPECT_EQ(store->Stats().resident_bytes, a->generation->info().resident_bytes);
  EXPECT_EQ(store->Stats().loads, 1u);
  EXPECT_TRUE(StatusFor(*store, "a").pinned);
  EXPECT_FALSE(StatusFor(*store, "b").pinned);
  EXPECT_EQ(store->Evict("b", "").code(), StatusCode::kFailedPrecondition);  // a holds it
  DF_EXPECT_OK(store->Retire("a", ""));
  EXPECT_TRUE(Ask(*b).granted());
  DF_EXPECT_OK(store->Evict("b", ""));
}

TEST_F(LiveStoreTest, AReplacedOneServesItsOwnRequestsToTheEndAndThenItsMemoryGoes) {
  const auto store = Make();
  const std::string at = CopyOf("delta", "replaced");
  auto first = ValueOrDie(store->Register("math", at, {}));
  LeaseAttempt running = WaitFor(*first);
  ASSERT_TRUE(running.granted());
  fs::remove_all(at);
  CopyOf("delta2", "replaced");
  const std::string digest = first->generation->info().digest;
  const auto second = ValueOrDie(store->Register("math", at, {.replace = true, .expected_generation = digest}));
  EXPECT_NE(second->generation->info().digest, digest);
  EXPECT_EQ(store->FindOrNull("math"), second);
  {
    const LeaseAttempt on_second = WaitFor(*second);
    ASSERT_TRUE(on_second.granted());
    EXPECT_EQ(on_second.lease.weights()->digest, second->generation->info().digest);
    EXPECT_EQ(running.lease.weights()->digest, digest);
    LeaseAttempt queued = WaitFor(*first);  // one that was queued before
    EXPECT_TRUE(queued.granted());
  }
  const uint64_t both = store->Stats().resident_bytes;
  EXPECT_EQ(both, first->generation->info().resident_bytes + second->generation->info().resident_bytes);
  const std::weak_ptr<const Generation> old = first->generation;
  running.lease.End();
  EXPECT_TRUE(Eventually([&] { return store->Stats().resident_bytes < both; }));
  EXPECT_EQ(store->Stats().evictions.at("retired"), 1u);
  ASSERT_TRUE(WaitFor(*first).granted());  // its files are still open
  first.reset();
  EXPECT_TRUE(Eventually([&] { return old.expired(); }));
  EXPECT_TRUE(Eventually([&] { return store->Stats().resident_bytes == second->generation->info().resident_bytes; }));
}

TEST_F(LiveStoreTest, ChangesOnlyTheGenerationThatTheCallerMeant) {
  const auto store = Make();
  const auto variant = ValueOrDie(store->Register("math", Path("delta"), {}));
  EXPECT_EQ(StatusOf(store->Register("math", Path("delta2"), {})).code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(StatusOf(store->Register("math", Path("delta2"), {})).message().find("already loaded"), std::string::npos);
  const std::string wrong(32, '0');
  EXPECT_TRUE(IsGenerationMismatch(
      StatusOf(store->Register("math", Path("delta2"), {.replace = true, .expected_generation = wrong}))));
  for (const Status& status : {store->Retire("math", wrong), store->Pin("math", wrong), store->Unpin("math", wrong),
                               store->Prefetch("math", wrong), store->Evict("math", wrong)}) {
    EXPECT_TRUE(IsGenerationMismatch(status)) << status.message();
  }
  EXPECT_EQ(store->FindOrNull("math"), variant);
  EXPECT_EQ(store->Retire("sql", "").code(), StatusCode::kNotFound);
  EXPECT_EQ(store->Retire("tiny", "").code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(StatusOf(store->Register("tiny", Path("delta"), {.replace = true})).code(),
            StatusCode::kFailedPrecondition);
}

TEST_F(LiveStoreTest, RefusesWhatCannotBeServedAndKeepsTheOthers) {
  const auto store = Make({.budget_bytes = BytesOf("delta")});
  const auto sound = ValueOrDie(store->Register("sound", Path("delta"), {}));
  FlipLastBit(CopyOf("delta", "flipped") + "/delta_model.safetensors");
  ExpectRefusal(store->Register("x", Path("foreign"), {}), StatusCode::kFailedPrecondition, {"\"x\"", "fingerprint"});
  ExpectRefusal(store->Register("x", Path("flipped"), {}), StatusCode::kCorrupt, {"\"x\"", "digest"});
  ExpectRefusal(store->Register("x", Path("absent"), {}), StatusCode::kNotFound, {"\"x\""});
  ExpectRefusal(store->Register("x", Path("other"), {}), StatusCode::kFailedPrecondition, {"compress"});
  ExpectRefusal(store->Register("x y", Path("delta"), {}), StatusCode::kInvalidArgument, {"name"});
  ExpectRefusal(store->Register("x", Path("adapter"), {.root = "", .parent = "nobody"}),
                StatusCode::kFailedPrecondition, {"nobody"});
  EXPECT_EQ(store->List().size(), 2u);
  EXPECT_TRUE(WaitFor(*sound).granted());
}

TEST_F(LiveStoreTest, RefusesWhatCanNeverFit) {
  const auto store = Make({.budget_bytes = BytesOf("delta") - 1});
  ExpectRefusal(store->Register("math", Path("delta"), {}), StatusCode::kResourceExhausted,
                {std::to_string(BytesOf("delta")), "variant-bytes"});
  const auto adapter = ValueOrDie(store->Register("tone", Path("adapter"), {}));
  EXPECT_TRUE(WaitFor(*adapter).granted());
}

TEST_F(LiveStoreTest, AFileChangedInPlaceFailsThatVariantAlone) {
  const auto store = Make();
  const std::string path = CopyOf("delta", "changed") + "/delta_model.safetensors";
  const auto changed = ValueOrDie(store->Register("changed", Path("changed"), {}));
  const auto sound = ValueOrDie(store->Register("sound", Path("delta2"), {}));
  FlipLastBit(path);
  const LeaseAttempt attempt = WaitFor(*changed);
  ExpectRefusal(attempt.failure, StatusCode::kUnavailable, {kGenerationGone});
  EXPECT_EQ(attempt.failure.message().find('/'), std::string::npos) << attempt.failure.message();
  const VariantStatus status = StatusFor(*store, "changed");
  EXPECT_EQ(status.state, ResidencyState::kFailed);
  EXPECT_NE(status.failure.message().find("digest"), std::string::npos);
  EXPECT_LE(status.retry_in_ms, 1000);
  EXPECT_EQ(store->Stats().load_failures, 1u);
  EXPECT_EQ(store->Stats().reserved_bytes, 0u);
  EXPECT_TRUE(WaitFor(*sound).granted());
  FlipLastBit(path);  // as it was: it comes back by itself
  EXPECT_TRUE(Eventually([&] { return Ask(*changed).granted(); }));
}

TEST_F(LiveStoreTest, ATruncatedFileFailsThatVariantAlone) {
  const auto store = Make();
  const std::string path = CopyOf("delta", "cut") + "/delta_model.safetensors";
  const auto cut = ValueOrDie(store->Register("cut", Path("cut"), {}));
  fs::resize_file(path, 4096);
  ExpectRefusal(WaitFor(*cut).failure, StatusCode::kUnavailable, {kGenerationGone});
}

TEST_F(LiveStoreTest, ALoadWithoutMemoryIsAFailureThatPasses) {
  const auto store = Make();
  store->SetBusyProbe([]() -> bool { throw std::bad_alloc(); });
  const auto variant = ValueOrDie(store->Register("math", Path("delta"), {}));
  ExpectRefusal(WaitFor(*variant).failure, StatusCode::kUnavailable, {"memory"});
  EXPECT_EQ(store->Stats().reserved_bytes, 0u);
  store->SetBusyProbe({});
  EXPECT_TRUE(Eventually([&] { return Ask(*variant).granted(); }));
}

TEST_F(LiveStoreTest, StaysWithinItsBudgetWhateverIsAskedFor) {
  const uint64_t budget = BytesOf("delta") + BytesOf("adapter");
  const auto store = Make({.budget_bytes = budget});
  std::vector<std::shared_ptr<const Variant>> variants;
  for (const std::string name : {"delta", "delta2", "adapter"}) {
    variants.push_back(ValueOrDie(store->Register(name, Path(name), {})));
  }
  std::atomic<bool> stop{false};
  std::thread sampler([&] {
    while (!stop) {
      const StoreStats stats = store->Stats();
      EXPECT_LE(stats.reserved_bytes, budget);
      EXPECT_LE(stats.resident_bytes, stats.reserved_bytes);
    }
  });
  for (int i = 0; i < 30; ++i) {
    const LeaseAttempt attempt = WaitFor(*variants[static_cast<size_t>(i) % 3]);
    EXPECT_TRUE(attempt.granted());
  }
  stop = true;
  sampler.join();
  EXPECT_GT(store->Stats().evictions.at("budget"), 5u);
}

TEST_F(LiveStoreTest, RetiringWhileItLoadsLeavesNothingBehind) {
  Gate gate;
  const auto store = Make();
  store->SetBusyProbe(gate.Probe());
  auto variant = ValueOrDie(store->Register("math", Path("delta"), {}));
  EXPECT_FALSE(Ask(*variant).granted());
  ASSERT_TRUE(Eventually([&] { return gate.entered(); }));
  EXPECT_EQ(StatusFor(*store, "math").state, ResidencyState::kLoading);
  DF_EXPECT_OK(store->Retire("math", ""));
  variant.reset();
  EXPECT_GT(store->Stats().reserved_bytes, 0u);
  gate.Open();
  EXPECT_TRUE(Eventually([&] { return store->Stats().reserved_bytes == 0; }));
  EXPECT_TRUE(store->Statuses().empty());
}

TEST_F(LiveStoreTest, EndsWhileALoadIsUnderWayAndGenerationsLive) {
  Gate gate;
  auto store = Make();
  store->SetBusyProbe(gate.Probe());
  const auto variant = ValueOrDie(store->Register("math", Path("delta"), {}));
  EXPECT_FALSE(Ask(*variant).granted());
  ASSERT_TRUE(Eventually([&] { return gate.entered(); }));
  gate.Open();
  store.reset();
  const LeaseAttempt attempt = Ask(*variant);
  EXPECT_TRUE(attempt.granted() || !attempt.failure.ok());
}

TEST_F(LiveStoreTest, APinnedOneIsLoadedByItselfAndStays) {
  const auto store = Make({.budget_bytes = BytesOf("delta") + BytesOf("adapter")});
  ValueOrDie(store->Register("pinned", Path("delta"), {.pinned = true}));
  EXPECT_TRUE(Eventually([&] { return StatusFor(*store, "pinned").state == ResidencyState::kResident; }));
  const auto other = ValueOrDie(store->Register("tone", Path("adapter"), {}));
  EXPECT_TRUE(WaitFor(*other).granted());
  ExpectRefusal(store->Register("big", Path("delta2"), {}), StatusCode::kResourceExhausted, {"pinned"});
  EXPECT_EQ(store->Evict("pinned", "").code(), StatusCode::kFailedPrecondition);
  DF_EXPECT_OK(store->Unpin("pinned", ""));
  const auto big = ValueOrDie(store->Register("big", Path("delta2"), {}));
  EXPECT_TRUE(WaitFor(*big).granted());
  EXPECT_EQ(StatusFor(*store, "pinned").state, ResidencyState::kRegistered);
  EXPECT_EQ(store->Pin("tone", "").code(), StatusCode::kOk);
  EXPECT_EQ(store->Pin("pinned", "").code(), StatusCode::kOk);
  EXPECT_EQ(store->Pin("big", "").code(), StatusCode::kResourceExhausted);
  EXPECT_FALSE(StatusFor(*store, "big").pinned);
  for (const std::string name : {"tone", "pinned"}) {
    EXPECT_TRUE(Eventually([&] { return StatusFor(*store, name).state == ResidencyState::kResident; })) << name;
  }
}

TEST_F(LiveStoreTest, AnAdapterOnAOneBitVariantBringsItsParentAlong) {
  const auto store = Make();
  const auto parent = ValueOrDie(store->Register("math", Path("delta"), {}));
  const auto child = ValueOrDie(store->Register("math-tone", Path("adapter"), {.parent = "math"}));
  EXPECT_EQ(child->parent, "math");
  {
    const LeaseAttempt attempt = WaitFor(*child);
    ASSERT_TRUE(attempt.granted());
    EXPECT_EQ(attempt.lease.weights()->digest, child->generation->info().digest);
    EXPECT_EQ(attempt.lease.weights()->parent->digest, parent->generation->info().digest);
    EXPECT_EQ(StatusFor(*store, "math-tone").bytes, attempt.lease.weights()->bytes);
    EXPECT_EQ(StatusFor(*store, "math").state, ResidencyState::kResident);
    EXPECT_EQ(store->Evict("math", "").code(), StatusCode::kFailedPrecondition);
  }
  EXPECT_EQ(store->Retire("math", "").code(), StatusCode::kFailedPrecondition);
  ExpectRefusal(store->Register("x", Path("adapter"), {.parent = "math-tone"}), StatusCode::kFailedPrecondition,
                {"math-tone"});
  ExpectRefusal(store->Register("x", Path("delta2"), {.parent = "math"}), StatusCode::kFailedPrecondition, {"parent"});
  const auto alone = ValueOrDie(store->Register("tone", Path("adapter"), {}));
  EXPECT_NE(alone->generation->info().digest, child->generation->info().digest);
  DF_EXPECT_OK(store->Retire("math-tone", ""));
  DF_EXPECT_OK(store->Retire("math", ""));
  EXPECT_TRUE(Eventually([&] { return store->Stats().reserved_bytes == 0; }));
  EXPECT_TRUE(WaitFor(*child).granted());  // queued before: its parent comes with it
}

TEST_F(LiveStoreTest, AnAdapterTakesFromItsParentWhatItLacks) {
  const std::string parent_at = CopyOf("delta", "instructed");
  testing::WriteText(parent_at + "/chat_template.jinja", "the parent's");
  testing::WriteText(parent_at + "/generation_config.json", R"({"eos_token_id": [3, 5], "temperature": 0.5})");
  Json tokenizer = ValueOrDie(ReadJsonFile(Path("base") + "/tokenizer.json"));
  tokenizer["note"] = "of its own bytes";
  testing::WriteText(parent_at + "/tokenizer.json", DumpJson(tokenizer));
  const std::string own_at = CopyOf("adapter", "own-template");
  testing::WriteText(own_at + "/chat_template.jinja", "the adapter's");
  testing::WriteText(own_at + "/generation_config.json", R"({"temperature": 0.25})");

  const auto store = Make();
  const auto parent = ValueOrDie(store->Register("math", parent_at, {}));
  ASSERT_NE(parent->text->tokenizer, base_.variant->text->tokenizer);
  const auto child = ValueOrDie(store->Register("tone", Path("adapter"), {.parent = "math"}));
  EXPECT_EQ(child->text->tokenizer, parent->text->tokenizer);
  EXPECT_EQ(child->text->chat_template, parent->text->chat_template);
  EXPECT_EQ(child->defaults.temperature, 0.5);
  EXPECT_EQ(child->eos_ids, parent->eos_ids);
  const auto own = ValueOrDie(store->Register("own", own_at, {.parent = "math"}));
  EXPECT_NE(own->text->chat_template, parent->text->chat_template);
  EXPECT_EQ(own->text->tokenizer, parent->text->tokenizer);
  EXPECT_EQ(own->defaults.temperature, 0.25);

  const auto given = Make();
  DF_EXPECT_OK(given->AddGiven({{"tone", Path("adapter"), "math"}, {"math", parent_at}}, {}));
  EXPECT_EQ(given->FindOrNull("tone")->text->chat_template, given->FindOrNull("math")->text->chat_template);
}

TEST_F(LiveStoreTest, AParentIsNotReplacedUnderItsChildren) {
  const auto store = Make();
  CopyOf("delta", "same");
  const auto parent = ValueOrDie(store->Register("math", Path("delta"), {}));
  ValueOrDie(store->Register("tone", Path("adapter"), {.parent = "math"}));
  ValueOrDie(store->Register("alias", Path("same"), {}));
  ExpectRefusal(store->Register("math", Path("delta2"), {.replace = true}), StatusCode::kFailedPrecondition,
                {"\"math\"", "\"tone\"", "parent"});
  EXPECT_EQ(store->FindOrNull("math"), parent);
  ValueOrDie(store->Register("math", Path("same"), {.replace = true}));     // its own content
  ValueOrDie(store->Register("alias", Path("delta2"), {.replace = true}));  // the child does not sit on that name
  EXPECT_EQ(store->Retire("math", "").code(), StatusCode::kFailedPrecondition);
  DF_EXPECT_OK(store->Retire("tone", ""));
  ValueOrDie(store->Register("math", Path("delta2"), {.replace = true}));
}

TEST_F(LiveStoreTest, AGenerationDamagedInPlaceIsRepairedByRegisteringGoodFiles) {
  for (const std::string repaired : {"damaged", "elsewhere"}) {
    const auto store = Make();
    const std::string at = CopyOf("delta", "damaged"), path = at + "/delta_model.safetensors";
    const auto variant = ValueOrDie(store->Register("math", at, {}));
    fs::resize_file(path, 4096);
    ExpectRefusal(WaitFor(*variant).failure, StatusCode::kUnavailable, {kGenerationGone});
    CopyOf("delta", "good");
    if (repaired == "damaged") fs::remove_all(at);
    fs::remove_all(Path("elsewhere"));
    fs::rename(Path("good"), Path(repaired));
    const auto again = ValueOrDie(store->Register("math", Path(repaired), {.replace = true}));
    EXPECT_EQ(again->generation, variant->generation);
    EXPECT_TRUE(WaitFor(*again).granted());  // without waiting for the backoff of the failure
  }
}

TEST_F(LiveStoreTest, AFileThatWasShortForAWhileIsReadAgain) {
  const auto store = Make();
  const std::string path = CopyOf("delta", "short") + "/delta_model.safetensors";
  const std::string whole = ValueOrDie(ReadFileBounded(path, size_t{1} << 30));
  const auto variant = ValueOrDie(store->Register("math", Path("short"), {}));
  fs::resize_file(path, 4096);  // as by cp over it
  ExpectRefusal(WaitFor(*variant).failure, StatusCode::kUnavailable, {kGenerationGone});
  std::ofstream(path, std::ios::binary) << whole;
  EXPECT_TRUE(Eventually([&] { return Ask(*variant).granted(); }));
  CopyOf("delta2", "next-short");  // other files are not taken for these
  fs::remove_all(Path("short"));
  fs::rename(Path("next-short"), Path("short"));
  DF_EXPECT_OK(store->Evict("math", ""));
  const LeaseAttempt attempt = WaitFor(*variant);
  ASSERT_TRUE(attempt.granted());
  EXPECT_EQ(attempt.lease.weights()->digest, variant->generation->info().digest);
}

TEST_F(LiveStoreTest, ANameThatCannotBeGivenLeavesNoMemoryBehind) {
  const auto store = Make({.budget_bytes = BytesOf("delta") + BytesOf("adapter")});
  const auto former = ValueOrDie(store->Register("big", Path("delta2"), {}));  // as a request does that is queued
  DF_EXPECT_OK(store->Retire("big", ""));
  ValueOrDie(store->Register("pinned", Path("delta"), {.pinned = true}));
  ExpectRefusal(store->Register("big", Path("delta2"), {.pinned = true}), StatusCode::kResourceExhausted, {"pinned"});
  DF_EXPECT_OK(store->Unpin("pinned", ""));
  DF_EXPECT_OK(store->Retire("pinned", ""));
  EXPECT_TRUE(WaitFor(*former).granted());
  EXPECT_TRUE(Eventually([&] { return store->Stats().reserved_bytes == 0; }));
}

TEST_F(LiveStoreTest, PrefetchesAndEvictsOnRequest) {
  const auto store = Make();
  const auto variant = ValueOrDie(store->Register("math", Path("delta"), {}));
  DF_EXPECT_OK(store->Prefetch("math", ""));
  ASSERT_TRUE(Eventually([&] { return StatusFor(*store, "math").state == ResidencyState::kResident; }));
  {
    const LeaseAttempt attempt = Ask(*variant);
    EXPECT_TRUE(attempt.granted());
    EXPECT_EQ(store->Evict("math", "").code(), StatusCode::kFailedPrecondition);
  }
  DF_EXPECT_OK(store->Evict("math", ""));
  EXPECT_TRUE(Eventually([&] { return store->Stats().reserved_bytes == 0; }));
  EXPECT_EQ(store->Stats().evictions.at("operator"), 1u);
}

}  // namespace
}  // namespace df
