// What a pool knows of the content in its slots: a second time it is not merged, and a refusal leaves no trace.
#include "base/json.h"
#include "format/digest.h"
#include "merge/adapter_pool_fixture.h"
#include "testing/refusal.h"

namespace df {
namespace {

namespace fs = std::filesystem;
using testing::DistanceOf;
using testing::ExpectRefusal;
using testing::MakeFactors;
using testing::ValueOrDie;

class AdapterPoolContentTest : public AdapterPoolTest {
 protected:
  // A slot with the shares of "a" and "b".
  void MergeTwo() {
    Create({.budget_bytes = kOne});
    DF_ASSERT_OK(Add("a", Made(1, 0.5F)));
    DF_ASSERT_OK(Add("b", Made(2, 0.5F)));
  }
};

TEST_F(AdapterPoolContentTest, AnAdditionThatIsNotAcceptedLeavesNoTrace) {
  for (const uint64_t budget : {kOne, 3 * kOne}) {
    Create({.budget_bytes = budget});
    DF_ASSERT_OK(Add("a", Made(1)));
    const PoolState before = pool_->state();
    const std::string on_disk = testing::ReadFile(Path() + "/pool.json");
    std::string seen;
    PoolAddOptions options;
    options.accept = [&](const PoolAdded& added, const std::string& directory, const PoolSlot& slot) {
      EXPECT_TRUE(fs::exists(directory + "/adapter_model.safetensors"));
      EXPECT_EQ(added.slot, slot.name);
      EXPECT_EQ(testing::ReadFile(Path() + "/pool.json"), on_disk);
      for (const PoolMember& member : slot.members) seen += member.id;
      return Unavailable("not now");
    };
    for (const char* id : {"b", "a"}) {
      options.replace = true;
      ExpectRefusal(Add(id, Made(2), options), StatusCode::kUnavailable, {"not now"});
    }
    options.replace = false;
    ExpectRefusal(Add("alias", Made(1), options), StatusCode::kUnavailable, {"not now"});
    EXPECT_EQ(seen, budget == kOne ? "abaaalias" : "baaalias");
    EXPECT_EQ(pool_->state(), before);
    EXPECT_EQ(testing::ReadFile(Path() + "/pool.json"), on_disk);
    EXPECT_EQ(SlotDirectories(), 1U);
    DF_EXPECT_OK(Add("b", Made(2)));
  }
}

TEST_F(AdapterPoolContentTest, ThatIsInTheSlotAlreadyIsNotMergedAgain) {
  MergeTwo();
  const PoolState before = pool_->state();
  const std::string on_disk = testing::ReadFile(Path() + "/pool.json");
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(ValueOrDie(Add("b", Made(2, 0.5F), {.replace = true})).shared);  // in place of itself
  }
  EXPECT_EQ(pool_->state(), before);
  EXPECT_EQ(testing::ReadFile(Path() + "/pool.json"), on_disk);
  for (int i = 0; i < 3; ++i) {
    DF_ASSERT_OK(pool_->Remove("b"));
    EXPECT_EQ(SlotOf("a").former.size(), 1U);
    Reopen();
    EXPECT_TRUE(ValueOrDie(Add("b", Made(2, 0.5F))).shared);
  }
  PoolState after = pool_->state();
  EXPECT_EQ(after.n_added, before.n_added + 3);
  after.n_added = before.n_added;
  EXPECT_EQ(after, before);
  DF_ASSERT_OK(Add("twin", Made(1, 0.5F)));
  EXPECT_EQ(SlotOf("twin").name, SlotOf("a").name);
  EXPECT_EQ(SlotOf("a").n_merged, 2U);
  EXPECT_EQ(MemberOf("twin").distance_at_most, MemberOf("a").distance_at_most);
}

TEST_F(AdapterPoolContentTest, OfFormerMembersIsFollowedThroughLaterMerges) {
  MergeTwo();
  DF_ASSERT_OK(pool_->Remove("b"));
  DF_ASSERT_OK(Add("c", Made(3, 0.5F)));
  DF_ASSERT_OK(Add("again", Made(2, 0.5F)));
  EXPECT_EQ(SlotOf("again").n_merged, 3U);
  EXPECT_TRUE(SlotOf("again").former.empty());
  const AdapterFactors slot = FactorsOf("again"), own = MakeFactors(kModules, 2, 0.5F);
  const PoolMember& member = MemberOf("again");
  const double distance = DistanceOf({&slot, &own}, {1, -1});
  EXPECT_LE(distance, member.distance_at_most + 1e-6);
  EXPECT_NEAR(member.distance_estimate, distance, 0.35 * member.norm);  // as in TellsOfEveryMember...
}

TEST_F(AdapterPoolContentTest, InPlaceOfAnotherLeavesItsShareBehindAndComesBackToIt) {
  MergeTwo();
  DF_ASSERT_OK(Add("b", Made(3, 0.5F), {.replace = true}));
  EXPECT_EQ(SlotOf("b").n_merged, 3U);
  EXPECT_TRUE(ValueOrDie(Add("b", Made(2, 0.5F), {.replace = true})).shared);
  EXPECT_TRUE(ValueOrDie(Add("b", Made(3, 0.5F), {.replace = true})).shared);
  EXPECT_EQ(SlotOf("b").n_merged, 3U);
  EXPECT_EQ(SlotOf("b").former.size(), 1U);
}

TEST_F(AdapterPoolContentTest, BoundedTakesABackComerOnlyWithinItsBound) {
  Create({.budget_bytes = kOne, .policy = PoolPolicy::kBounded, .max_error = 5});
  DF_ASSERT_OK(Add("a", Made(1)));
  DF_ASSERT_OK(Add("b", Made(2)));
  DF_ASSERT_OK(pool_->Remove("b"));
  PoolSettings strict = pool_->state().settings;
  strict.max_error = 0.01;
  DF_ASSERT_OK(pool_->ChangeSettings(strict));
  ExpectRefusal(Add("b", Made(2)), StatusCode::kFailedPrecondition, {"off by up to"});
  strict.max_error = 5;
  DF_ASSERT_OK(pool_->ChangeSettings(strict));
  EXPECT_TRUE(ValueOrDie(Add("b", Made(2))).shared);
}

TEST_F(AdapterPoolContentTest, OfOlderFilesIsNotKnownAndTheyAreRead) {
  MergeTwo();
  const std::string path = Path() + "/pool.json";
  Json file = ValueOrDie(ParseJson(testing::ReadFile(path)));
  for (Json& slot : file["state"]["slots"]) {
    slot.erase("former");
    for (Json& member : slot["members"]) member.erase("digest");
  }
  Digest digest;
  digest.AddText(DumpJson(file["state"]));
  file["digest"] = digest.Hex();
  pool_.reset();
  testing::WriteFile(path, DumpJson(file));
  Reopen();
  EXPECT_TRUE(MemberOf("b").digest.empty());
  EXPECT_TRUE(ValueOrDie(Add("b", Made(2, 0.5F), {.replace = true})).merged);
  EXPECT_TRUE(ValueOrDie(Add("b", Made(2, 0.5F), {.replace = true})).shared);
}

TEST_F(AdapterPoolContentTest, ARefusalForRoomSaysWhatTheMergedSlotWouldTake) {
  const std::string wide =
      testing::WriteMade(MakeFactors({{.rank = 9}, {.path = testing::kDown, .rank = 9}}, 3), directory_ / "wide");
  Create({.budget_bytes = kOne + 8});
  DF_ASSERT_OK(Add("a", Made(1)));
  ExpectRefusal(Add("wide", wide), StatusCode::kResourceExhausted,
                {"slot 000001", std::to_string(3 * kOne) + " bytes", std::to_string(kOne + 8)});
}

TEST_F(AdapterPoolContentTest, ASlotWithoutSketchesIsNamedAsWhatIsDamaged) {
  Create({.budget_bytes = kOne});
  DF_ASSERT_OK(Add("a", Made(1)));
  fs::remove(pool_->DirectoryOf("000001") + "/pool_sketches.safetensors");
  ExpectRefusal(Add("b", Made(2)), StatusCode::kCorrupt, {"slot 000001 of the pool"});
}

}  // namespace
}  // namespace df
