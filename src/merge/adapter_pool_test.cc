#include "merge/adapter_pool.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "base/atomic_file.h"
#include "base/json.h"
#include "format/digest.h"
#include "merge/adapter_pool_fixture.h"
#include "merge/pool_sketches.h"
#include "testing/refusal.h"

namespace df {
namespace {

namespace fs = std::filesystem;
using testing::DistanceOf;
using testing::ExpectRefusal;
using testing::MakeFactors;
using testing::ValueOrDie;

TEST_F(AdapterPoolTest, KeepsWhatHasRoomByteForByteAndMergesTheRestIntoTheMostSimilar) {
  Create({.budget_bytes = 2 * kOne});
  DF_ASSERT_OK(Add("a", Made(1, 0.5F)));
  DF_ASSERT_OK(Add("b", Made(2)));
  EXPECT_EQ(testing::ReadFile(pool_->DirectoryOf(SlotOf("a").name) + "/adapter_model.safetensors"),
            testing::ReadFile(Made(1, 0.5F) + "/adapter_model.safetensors"));
  const PoolAdded added = ValueOrDie(Add("c", Made(3, 0.5F)));
  EXPECT_TRUE(added.merged);
  EXPECT_GT(added.similarity, 0.2);
  EXPECT_EQ(SlotOf("c").name, SlotOf("a").name);
  EXPECT_NE(SlotOf("b").name, SlotOf("a").name);
  EXPECT_EQ(SlotOf("a").members.size(), 2U);
  EXPECT_LE(pool_->state().UsedBytes(), 2 * kOne);
  EXPECT_EQ(SlotDirectories(), 2U);
  const PoolState before = pool_->state();
  Reopen();
  EXPECT_EQ(pool_->state(), before);
}

TEST_F(AdapterPoolTest, TellsOfEveryMemberHowFarItIsAtMostAndAbout) {
  Create({.budget_bytes = kOne});
  std::vector<AdapterFactors> members;
  for (uint64_t seed = 0; seed < 5; ++seed) {
    members.push_back(MakeFactors(kModules, seed, 0.4F));
    DF_ASSERT_OK(Add("m" + std::to_string(seed), Made(seed, 0.4F)));
    const AdapterFactors slot = FactorsOf("m0");
    for (size_t i = 0; i < members.size(); ++i) {
      const PoolMember& member = MemberOf("m" + std::to_string(i));
      const double distance = DistanceOf({&slot, &members[i]}, {1, -1});
      EXPECT_LE(distance, member.distance_at_most + 1e-6);
      EXPECT_LE(member.distance_estimate, member.distance_at_most);
      // Two small modules: sketches are coarse.
      EXPECT_NEAR(member.distance_estimate, distance, 0.35 * member.norm);
      if (members.size() <= 2 || i + 1 == members.size()) {
        EXPECT_NEAR(member.distance_at_most, distance, 1e-4 * distance + 1e-6);
      }
    }
  }
  EXPECT_EQ(SlotOf("m0").n_merged, 5U);
  EXPECT_GT(SlotOf("m0").mean_distance_at_most, 0);
  EXPECT_EQ(pool_->state().n_merges, 4U);
}

TEST_F(AdapterPoolTest, KMergePlusTakesAFreeSlotOnlyForWhatIsUnlikeAll) {
  Create({.budget_bytes = 8 * kOne, .policy = PoolPolicy::kKMergePlus, .threshold = 0.2});
  DF_ASSERT_OK(Add("a", Made(1, 0.5F)));
  EXPECT_FALSE(ValueOrDie(Add("unlike", Made(2))).merged);
  EXPECT_TRUE(ValueOrDie(Add("like", Made(3, 0.5F))).merged);
  EXPECT_EQ(SlotOf("like").name, SlotOf("a").name);
}

TEST_F(AdapterPoolTest, AThresholdMayBeAQuantileOfThePoolsOwnSimilarities) {
  Create(
      {.budget_bytes = 8 * kOne, .policy = PoolPolicy::kKMergePlus, .threshold = 0.5, .threshold_is_quantile = true});
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    const PoolAdded added = ValueOrDie(Add("unlike-" + std::to_string(seed), Made(seed)));
    if (seed <= 2) {
      EXPECT_FALSE(added.merged) << seed;  // of one slot there is no similarity
    }
  }
  DF_ASSERT_OK(Add("twin", Made(9, 0.9F)));
  EXPECT_TRUE(ValueOrDie(Add("twin's twin", Made(10, 0.9F))).merged);  // more alike than any two slots
  EXPECT_EQ(SlotOf("twin").name, SlotOf("twin's twin").name);
  for (const PoolSlot& slot : pool_->state().slots) {
    for (const auto& [name, similarity] : slot.similarities) {
      EXPECT_TRUE(std::ranges::any_of(pool_->state().slots, [&](const PoolSlot& s) { return s.name == name; })) << name;
    }
  }
}

TEST_F(AdapterPoolTest, BoundedRefusesAMergeByWhichAMemberWouldLoseTooMuch) {
  Create({.budget_bytes = kOne, .policy = PoolPolicy::kBounded, .max_error = 0.6});
  DF_ASSERT_OK(Add("a", Made(1, 0.6F)));
  DF_ASSERT_OK(Add("like", Made(2, 0.6F)));
  const PoolState before = pool_->state();
  ExpectRefusal(Add("unlike", Made(3)), StatusCode::kFailedPrecondition, {"merging \"unlike\"", "off by up to", "0.6"});
  PoolState after = pool_->state();
  EXPECT_EQ(after.n_refusals, 1U);
  after.n_refusals = 0;
  EXPECT_EQ(after, before);
  for (const PoolMember& member : SlotOf("a").members) EXPECT_LE(member.distance_at_most, 0.6 * member.norm);
}

TEST_F(AdapterPoolTest, BoundedMayEvictTheLeastUsedSlotInsteadOfRefusing) {
  Create(
      {.budget_bytes = 2 * kOne, .policy = PoolPolicy::kBounded, .max_error = 0.1, .on_refusal = PoolRefusal::kEvict});
  DF_ASSERT_OK(Add("used", Made(1)));
  DF_ASSERT_OK(Add("idle", Made(2)));
  pool_->CountUses("used", 7);
  const PoolAdded added = ValueOrDie(Add("third", Made(3)));
  EXPECT_EQ(added.evicted_ids, std::vector<std::string>{"idle"});
  EXPECT_EQ(pool_->state().FindOrNull("idle"), nullptr);
  EXPECT_EQ(SlotOf("used").uses, 7U);
  EXPECT_EQ(SlotDirectories(), 2U);
}

TEST_F(AdapterPoolTest, BoundedByScoresAcceptsWhatKeepsThemAndNamesWhoWouldNot) {
  Create({.budget_bytes = kOne, .policy = PoolPolicy::kBounded, .min_score_share = 0.8});
  // The score of an id: 1 with an adapter of one member, less with more, by id.
  const auto score = [](double with_others) {
    return [with_others](const std::string& id, const std::string& directory) -> Result<std::optional<double>> {
      if (id == "unscored") return std::optional<double>();
      const bool is_own = directory.find("/made-") != std::string::npos;
      return std::optional(is_own ? 1 : with_others);
    };
  };
  DF_ASSERT_OK(Add("a", Made(1), {.score = score(1)}));
  DF_ASSERT_OK(Add("b", Made(2), {.score = score(0.85)}));
  EXPECT_EQ(MemberOf("a").score, 0.85);
  EXPECT_EQ(MemberOf("a").own_score, 1);
  ExpectRefusal(Add("c", Made(3), {.score = score(0.75)}), StatusCode::kFailedPrecondition,
                {"\"a\"", "score of 0.75", "0.8"});
  ExpectRefusal(Add("unscored", Made(3), {.score = score(1)}), StatusCode::kFailedPrecondition,
                {"\"unscored\"", "neither a probe"});
  EXPECT_EQ(SlotDirectories(), 1U);
  Reopen();
  EXPECT_EQ(MemberOf("b").score, 0.85);
}

TEST_F(AdapterPoolTest, WhatCannotBeMergedKeepsASlotOfItsOwnOrIsRefusedByName) {
  const std::string lora = std::string(DELTAFOLD_SOURCE_DIR) + "/tests/golden/lora/llama3-gqa/";
  Create({.budget_bytes = 200000});
  DF_ASSERT_OK(Add("dora", lora + "dora"));
  DF_ASSERT_OK(Add("plain", lora + "plain-r4"));
  EXPECT_NE(SlotOf("dora").whole.find("DoRA"), std::string::npos);
  PoolSettings full = pool_->state().settings;
  full.budget_bytes = pool_->state().UsedBytes();
  DF_ASSERT_OK(pool_->ChangeSettings(full));
  ExpectRefusal(Add("bias", lora + "lora-bias"), StatusCode::kResourceExhausted, {"cannot be merged", "lora_bias"});
  EXPECT_EQ(SlotOf("dora").members.size(), 1U);
}

TEST_F(AdapterPoolTest, WhatBringsOtherTextIsMergedOnlyWithItsOwnKind) {
  Create({.budget_bytes = 2 * kOne});
  testing::WriteFile(Made(1, 0.5F) + "/chat_template.jinja", "one");
  testing::WriteFile(Made(3, 0.5F) + "/chat_template.jinja", "one");
  DF_ASSERT_OK(Add("with", Made(1, 0.5F)));
  DF_ASSERT_OK(Add("without", Made(2)));
  DF_ASSERT_OK(Add("without too", Made(4, 0.5F)));
  EXPECT_EQ(SlotOf("without too").name, SlotOf("without").name);
  DF_ASSERT_OK(Add("with too", Made(3, 0.5F)));
  EXPECT_EQ(SlotOf("with too").name, SlotOf("with").name);
  EXPECT_EQ(testing::ReadFile(pool_->DirectoryOf(SlotOf("with").name) + "/chat_template.jinja"), "one");
}

TEST_F(AdapterPoolTest, TheSameBytesUnderAnotherIdShareASlot) {
  Create({.budget_bytes = 4 * kOne});
  DF_ASSERT_OK(Add("a", Made(1)));
  EXPECT_TRUE(ValueOrDie(Add("alias", Made(1))).shared);
  EXPECT_EQ(pool_->state().UsedBytes(), kOne);
  EXPECT_EQ(SlotOf("alias").n_merged, 1U);
  PoolSettings one = pool_->state().settings;
  one.budget_bytes = kOne;
  DF_ASSERT_OK(pool_->ChangeSettings(one));
  DF_ASSERT_OK(Add("b", Made(2)));
  const AdapterFactors slot = FactorsOf("alias"), own = MakeFactors(kModules, 1);
  EXPECT_NEAR(MemberOf("alias").distance_at_most, DistanceOf({&slot, &own}, {1, -1}), 1e-4);
}

TEST_F(AdapterPoolTest, AnIdIsTakenOnceReplacedWhenAskedAndGoesWithItsSlot) {
  Create({.budget_bytes = 2 * kOne});
  DF_ASSERT_OK(Add("a", Made(1)));
  ExpectRefusal(Add("a", Made(2)), StatusCode::kFailedPrecondition, {"\"a\"", "already"});
  DF_ASSERT_OK(Add("a", Made(2), {.replace = true}));
  const AdapterFactors now = FactorsOf("a"), second = MakeFactors(kModules, 2);
  EXPECT_EQ(DistanceOf({&now, &second}, {1, -1}), 0);
  EXPECT_EQ(SlotDirectories(), 1U);
  DF_ASSERT_OK(Add("b", Made(3)));
  ExpectRefusal(pool_->Remove("c"), StatusCode::kNotFound, {"\"c\""});
  DF_ASSERT_OK(pool_->Remove("a"));
  EXPECT_EQ(pool_->state().FindOrNull("a"), nullptr);
  EXPECT_EQ(ValueOrDie(pool_->EvictSlot(SlotOf("b").name)), std::vector<std::string>{"b"});
  ExpectRefusal(pool_->EvictSlot("000001"), StatusCode::kNotFound, {"000001"});
  EXPECT_EQ(SlotDirectories(), 0U);
  for (const char* id : {"", "a\nb", "\xff"}) {
    ExpectRefusal(Add(id, Made(1)), StatusCode::kInvalidArgument, {"the id"});
  }
}

TEST_F(AdapterPoolTest, RefusesAdaptersOfAnotherBase) {
  Create({.budget_bytes = 100 * kOne});
  DF_ASSERT_OK(Add("a", Made(1)));
  const std::string other = testing::WriteMade(MakeFactors({{.d_in = 22}}, 1), directory_ / "other");
  ExpectRefusal(Add("b", other), StatusCode::kFailedPrecondition,
                {testing::kQuery, "24 x 22", "24 x 20", "another base"});
}

TEST_F(AdapterPoolTest, WaitsForWhoHasItUntilItIsFreeOrTheTimeIsUp) {
  Create({.budget_bytes = 2 * kOne});
  std::vector<std::string> holders;
  const auto note = [&](const std::string& holder) { holders.push_back(holder); };
  ExpectRefusal(AdapterPool::Open(Path(), {.most_ms = 120, .on_wait = note}), StatusCode::kFailedPrecondition,
                {"in use by process"});
  const auto let_go = [&](const std::string& holder) {
    note(holder);
    DF_EXPECT_OK(Add("a", Made(1)));
    pool_.reset();
  };
  const auto opened = ValueOrDie(AdapterPool::Open(Path(), {.most_ms = 600'000, .on_wait = let_go}));
  EXPECT_NE(opened->state().FindOrNull("a"), nullptr) << "what the other did is seen";
  EXPECT_EQ(holders, std::vector<std::string>(2, "process " + std::to_string(getpid())));
  // Who wrote no number is another process all the same.
  testing::WriteFile(Path() + "/pool.lock", "12x\n");
  ExpectRefusal(AdapterPool::Open(Path()), StatusCode::kFailedPrecondition, {"in use by another process"});
}

TEST_F(AdapterPoolTest, OneProcessAtATimeChangesAPoolAndAnyMayLook) {
  Create({.budget_bytes = 2 * kOne});
  DF_ASSERT_OK(Add("a", Made(1)));
  ExpectRefusal(AdapterPool::Open(Path()), StatusCode::kFailedPrecondition,
                {Path(), "in use by process " + std::to_string(getpid())});
  EXPECT_EQ(ValueOrDie(AdapterPool::ReadState(Path())), pool_->state());
  ExpectRefusal(AdapterPool::Create(Path(), {.budget_bytes = 1}), StatusCode::kFailedPrecondition, {"not empty"});
  ExpectRefusal(AdapterPool::ReadState(directory_ / "none"), StatusCode::kNotFound, {"no adapter pool"});
}

TEST_F(AdapterPoolTest, ADamagedSlotIsNamed) {
  Create({.budget_bytes = kOne});
  DF_ASSERT_OK(Add("a", Made(1)));
  const std::string file = pool_->DirectoryOf("000001") + "/adapter_model.safetensors";
  const std::string whole = testing::ReadFile(file);
  std::string changed = whole;
  changed[changed.size() - 2] ^= 1;
  testing::WriteFile(file, changed);
  const auto damage = [&] { return ValueOrDie(AdapterPool::ReadState(Path())).slots[0].damage; };
  EXPECT_EQ(damage(), "");  // which looks at sizes
  ExpectRefusal(Add("b", Made(2)), StatusCode::kResourceExhausted, {"no slot"});
  EXPECT_NE(SlotOf("a").damage.find("digest"), std::string::npos);
  testing::WriteFile(file, whole.substr(0, whole.size() - 4));
  EXPECT_NE(damage(), "");
  fs::remove_all(pool_->DirectoryOf("000001"));
  EXPECT_NE(damage(), "");
}

TEST_F(AdapterPoolTest, ADamagedSlotHoldsNobodyUpAndGoesWithItsIds) {
  for (const bool evicts : {false, true}) {
    Create({.budget_bytes = 2 * kOne});
    DF_ASSERT_OK(Add("a", Made(1, 0.5F)));
    DF_ASSERT_OK(Add("b", Made(2)));
    DF_ASSERT_OK(Add("a too", Made(3, 0.5F)));
    const std::string damaged = SlotOf("a").name;
    ASSERT_EQ(SlotOf("a too").name, damaged);
    fs::remove(pool_->DirectoryOf(damaged) + "/adapter_config.json");
    Reopen();
    EXPECT_EQ(pool_->state().Damaged(), 1U);
    EXPECT_TRUE(SlotOf("b").damage.empty());
    DF_ASSERT_OK(Add("c", Made(4, 0.5F)));  // more like "a"
    EXPECT_EQ(SlotOf("c").name, SlotOf("b").name);
    if (evicts) {
      EXPECT_EQ(ValueOrDie(pool_->EvictSlot(damaged)).size(), 2U);
    } else {
      DF_EXPECT_OK(pool_->Remove("a too"));
      DF_EXPECT_OK(Add("a", Made(1, 0.5F), {.replace = true}));  // in place of itself: it has a sound slot again
      EXPECT_EQ(SlotOf("a").n_merged, 1U);
    }
    EXPECT_EQ(pool_->state().Damaged(), 0U);
    Reopen();
    pool_->CheckContents();
    EXPECT_EQ(pool_->state().Damaged(), 0U);
  }
}

// What a slot's sketches say of norms: gone, as in those that were written before there were any, or of other modules.
TEST_F(AdapterPoolTest, NormsThatASlotLacksAreComputedAndThoseOfNoLengthRefused) {
  const auto add_third = [&](const std::vector<double>* norms) -> Result<PoolAdded> {
    Create({.budget_bytes = 2 * kOne});
    DF_RETURN_IF_ERROR(Add("a", Made(1, 0.5F)).status());
    DF_RETURN_IF_ERROR(Add("b", Made(2)).status());
    for (const PoolSlot& slot : pool_->state().slots) {
      if (norms == nullptr) continue;
      DF_ASSIGN_OR_RETURN(PoolSketches sketches, ReadSketches(pool_->DirectoryOf(slot.name)));
      EXPECT_EQ(sketches.squared_norms.size(), kModules.size());
      sketches.squared_norms = *norms;
      DF_RETURN_IF_ERROR(WriteSketches(sketches, pool_->DirectoryOf(slot.name)));
    }
    return Add("c", Made(3, 0.5F));
  };
  const PoolAdded expected = ValueOrDie(add_third(nullptr));
  const AdapterFactors merged = FactorsOf("c");
  for (const std::vector<double>& norms : {std::vector<double>(), std::vector<double>(3, 1.0)}) {
    EXPECT_EQ(ValueOrDie(add_third(&norms)).similarity, expected.similarity);
    const AdapterFactors now = FactorsOf("c");
    EXPECT_EQ(DistanceOf({&now, &merged}, {1, -1}), 0);
  }
  const std::vector<double> wrong = {1, -1};
  ExpectRefusal(add_third(&wrong), StatusCode::kCorrupt, {"pool_sketches", "squared_norms"});
}

// A process that kills itself before the n-th step of adding "new" (from 0); false when there are not so many.
bool AddAndKill(const std::string& path, const std::string& adapter, bool replace, size_t n) {
  const pid_t child = fork();
  if (child == 0) {
    size_t step = 0;
    const auto pool = AdapterPool::Open(path);
    ThreadPool threads(1);
    const bool ok = pool.ok() && (*pool)
                                     ->Add(threads, "new", adapter,
                                           {.replace = replace,
                                            .on_step =
                                                [&](std::string_view) {
                                                  if (step++ == n) kill(getpid(), SIGKILL);
                                                }})
                                     .ok();
    _exit(ok ? 0 : 1);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) return true;
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  return false;
}

class AdapterPoolKilledSlow : public AdapterPoolTest {};

TEST_F(AdapterPoolKilledSlow, AKillBeforeAnyStepLeavesEveryAcknowledgedIdAnswered) {
  for (const bool merges : {false, true}) {
    for (const bool replaces : {false, true}) {
      size_t n_kills = 0;
      for (size_t n = 0;; ++n) {
        Create({.budget_bytes = merges ? 2 * kOne : 3 * kOne});
        DF_ASSERT_OK(Add("a", Made(1, 0.5F)));
        DF_ASSERT_OK(Add(replaces ? "new" : "b", Made(2)));
        if (merges && replaces) {
          DF_ASSERT_OK(Add("b", Made(4)));
        }
        const PoolState before = pool_->state();
        pool_.reset();
        if (!AddAndKill(Path(), Made(3, 0.5F), replaces, n)) break;
        ++n_kills;
        Reopen();  // every slot is there with its bytes
        EXPECT_EQ(SlotDirectories(), pool_->state().slots.size());
        for (const PoolSlot& slot : before.slots) {
          for (const PoolMember& member : slot.members) EXPECT_NE(pool_->state().FindOrNull(member.id), nullptr);
        }
        const bool is_after = pool_->state().n_added > before.n_added;
        if (!is_after) {
          EXPECT_EQ(pool_->state(), before);
        }
        DF_EXPECT_OK(Add("new", Made(3, 0.5F), {.replace = true}));  // and goes on
      }
      EXPECT_GE(n_kills, 3U);
    }
  }
}

class PoolStateTest : public AdapterPoolTest {
 protected:
  void SetUp() override {
    Create({.budget_bytes = 2 * kOne, .max_error = 0.25});
    DF_ASSERT_OK(Add("a", Made(1)));
    DF_ASSERT_OK(Add("b", Made(2)));
    DF_ASSERT_OK(Add("c \"quoted\" \xC3\xA9", Made(3)));
    text_ = testing::ReadFile(Path() + "/pool.json");
  }
  // With a digest that fits, so that the field is what is wrong.
  std::string Edited(const std::function<void(Json&)>& edit) const {
    Json file = ValueOrDie(ParseJson(text_));
    edit(file["state"]);
    Digest digest;
    digest.AddText(DumpJson(file["state"]));
    file["digest"] = digest.Hex();
    return DumpJson(file);
  }
  std::string text_;
};

TEST_F(PoolStateTest, ReadsWhatItWrote) {
  const PoolState state = ValueOrDie(ParsePoolState(text_));
  EXPECT_EQ(state, pool_->state());
  EXPECT_EQ(DumpPoolState(state), text_);
}

TEST_F(PoolStateTest, RefusesEveryTruncationAndEveryChangedByte) {
  for (size_t size = 0; size + 1 < text_.size(); ++size) {
    EXPECT_FALSE(ParsePoolState(text_.substr(0, size)).ok()) << size;
  }
  for (size_t i = 0; i < text_.size(); ++i) {
    std::string changed = text_;
    changed[i] ^= 1;
    const Result<PoolState> state = ParsePoolState(changed);
    if (state.ok()) {
      EXPECT_EQ(*state, pool_->state()) << i;  // white space
    }
  }
}

TEST_F(PoolStateTest, RefusesHostileFieldsByName) {
  const auto expect = [&](const std::function<void(Json&)>& edit, const std::string& word) {
    ExpectRefusal(ParsePoolState(Edited(edit)), StatusCode::kCorrupt, {word});
  };
  expect([](Json& state) { state["slots"][0]["name"] = "../../etc"; }, "no name of a slot");
  expect([](Json& state) { state["slots"][0]["name"] = "000000"; }, "no name of a slot");
  expect([](Json& state) { state["slots"][0]["name"] = "999999"; }, "out of order");
  expect([](Json& state) { state["slots"][0]["members"][0]["id"] = ""; }, "the id");
  expect([](Json& state) { state["slots"][0]["members"][0]["id"] = state["slots"][1]["members"][0]["id"]; }, "twice");
  expect([](Json& state) { state["slots"][0]["members"] = Json::array(); }, "no members");
  expect([](Json& state) { state["slots"][0]["members"] = 3; }, "no array");
  expect([](Json& state) { state["slots"][0]["members"][0] = 3; }, "no object");
  expect([](Json& state) { state["slots"][0]["bytes"] = -1; }, "bytes");
  expect([](Json& state) { state["slots"][0]["norm"] = -1.0; }, "negative");
  expect([](Json& state) { state["slots"][0]["n_merged"] = 0; }, "nothing in it");
  expect([](Json& state) { state["slots"][0]["digest"] = "xyz"; }, "digest");
  expect([](Json& state) { state["slots"][0]["members"][0]["digest"] = "xyz"; }, "digest");
  expect([](Json& state) { state["slots"][0]["former"] = 3; }, "no array");
  expect([](Json& state) { state["slots"][0]["former"] = Json::array({state["slots"][1]["members"][0]}); }, "an id");
  expect(
      [](Json& state) { state["slots"][0]["former"] = Json::array({Json::object(), Json::object(), Json::object()}); },
      "more former");
  expect([](Json& state) { state["slots"][1]["similarities"]["000001"] = 2; }, "[-1, 1]");
  expect([](Json& state) { state["settings"]["policy"] = "kmerge+++"; }, "kmerge+++");
  expect([](Json& state) { state["settings"]["budget_bytes"] = 0; }, "0 bytes");
  expect([](Json& state) { state["settings"].erase("rule"); }, "rule");
  expect([](Json& state) { state.erase("next_slot"); }, "next_slot");
  Json later = ValueOrDie(ParseJson(text_));
  later["deltafold_pool"] = 2;
  ExpectRefusal(ParsePoolState(DumpJson(later)), StatusCode::kUnsupported, {"version 2", "version 1"});
  ExpectRefusal(ParsePoolState("[]"), StatusCode::kCorrupt, {"no JSON object"});
  ExpectRefusal(ParsePoolState("{}"), StatusCode::kCorrupt, {"no adapter pool's state"});
}

TEST(PoolSettings, NameWhatIsOutOfRange) {
  ExpectRefusal(CheckPoolSettings({}), StatusCode::kInvalidArgument, {"0 bytes"});
  ExpectRefusal(CheckPoolSettings({.budget_bytes = 1, .threshold = 1.5}), StatusCode::kInvalidArgument, {"threshold"});
  ExpectRefusal(CheckPoolSettings({.budget_bytes = 1, .threshold = -0.5, .threshold_is_quantile = true}),
                StatusCode::kInvalidArgument, {"quantile"});
  ExpectRefusal(CheckPoolSettings({.budget_bytes = 1, .max_error = -1}), StatusCode::kInvalidArgument, {"error"});
  ExpectRefusal(CheckPoolSettings({.budget_bytes = 1, .alpha = 1}), StatusCode::kInvalidArgument, {"alpha"});
  ExpectRefusal(ParsePoolPolicy("lru"), StatusCode::kInvalidArgument, {"lru", "kmerge++"});
}

}  // namespace
}  // namespace df
