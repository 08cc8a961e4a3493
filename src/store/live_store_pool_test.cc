// Adapters of a running program's pool: what a refusal, damage and a restart leave.
#include <filesystem>

#include "merge/adapter_pool.h"
#include "store/live_store_fixture.h"
#include "testing/refusal.h"

namespace df {
namespace {

namespace fs = std::filesystem;
using testing::ExpectRefusal;
using testing::ValueOrDie;

class LiveStorePoolTest : public LiveStoreTest {
 protected:
  static constexpr uint64_t kOne = 2 * 4 * (4 * (64 + 64) + 4 * (64 + 32));  // a tiny adapter's tensors

  void SetUp() override {
    for (const uint64_t seed : {11U, 12U, 13U}) testing::WriteTinyAdapter(Made(seed), {.seed = seed});
    fs::remove_all(PoolPath());
    fs::remove_all(Path("state"));
  }
  static std::string Made(uint64_t seed) { return Path("made-" + std::to_string(seed)); }
  static std::string PoolPath() { return Path("pool"); }
  std::unique_ptr<LiveStore> Pooled(uint64_t variant_bytes = UINT64_MAX, uint64_t pool_bytes = kOne) {
    auto store = Make({.budget_bytes = variant_bytes,
                       .state_file = Path("state"),
                       .pool = PoolSettings{.budget_bytes = pool_bytes},
                       .pool_directory = PoolPath()});
    store->RestoreAndWatch();
    return store;
  }
  // What is told of the names.
  static std::string Picture(const LiveStore& store) {
    std::string picture;
    for (const VariantStatus& status : store.Statuses()) {
      picture += status.variant->name + " " + status.variant->generation->info().digest + " " + status.variant->root +
                 " " + std::to_string(static_cast<int>(status.pinned)) +
                 (status.pool ? " " + status.pool->slot + " " + std::to_string(status.pool->members.size()) + " " +
                                    std::to_string(status.pool->error_at_most)
                              : "") +
                 "\n";
    }
    return picture;
  }
  static PoolState StateOnDisk() {
    PoolState state = ValueOrDie(AdapterPool::ReadState(PoolPath()));
    state.n_refusals = 0;
    return state;
  }
  static size_t SlotDirectories() {
    size_t n = 0;
    for ([[maybe_unused]] const auto& entry : fs::directory_iterator(PoolPath() + "/slots")) ++n;
    return n;
  }
};

TEST_F(LiveStorePoolTest, ALoadThatIsRefusedChangesNothing) {
  const auto store = Pooled(BytesOf("delta") + BytesOf("adapter") / 2);
  ValueOrDie(store->Register("a", Made(11), {.root = "made a"}));
  ValueOrDie(store->Register("big", Path("delta"), {.pinned = true}));
  const std::string before = Picture(*store);
  const PoolState on_disk = StateOnDisk();
  ExpectRefusal(store->Register("b", Made(12), {.root = "made b", .pinned = true}), StatusCode::kResourceExhausted,
                {"\"b\""});
  EXPECT_EQ(Picture(*store), before);
  EXPECT_EQ(StateOnDisk(), on_disk);
  EXPECT_EQ(SlotDirectories(), 1u);
  // In place as well: the name keeps what it had.
  ExpectRefusal(store->Register("a", Made(13), {.root = "made c", .replace = true, .pinned = true}),
                StatusCode::kResourceExhausted, {"\"a\""});
  EXPECT_EQ(Picture(*store), before);
  EXPECT_EQ(StateOnDisk(), on_disk);
  DF_EXPECT_OK(store->Retire("big", ""));
  EXPECT_TRUE(WaitFor(*store->FindOrNull("a")).granted());
  const auto b = ValueOrDie(store->Register("b", Made(12), {}));
  EXPECT_EQ(b->generation, store->FindOrNull("a")->generation);
}

TEST_F(LiveStorePoolTest, AStateThatCannotBeWrittenTakesAllRegistrationsBack) {
  const auto store = Pooled();
  ValueOrDie(store->Register("a", Made(11), {.root = "made a", .pinned = true}));
  const std::string before = Picture(*store), file = PoolPath() + "/pool.json";
  fs::rename(file, file + ".kept");
  fs::create_directory(file);
  EXPECT_FALSE(store->Register("b", Made(12), {.pinned = true}).ok());
  EXPECT_FALSE(store->Register("a", Made(13), {.replace = true}).ok());
  EXPECT_EQ(Picture(*store), before);
  EXPECT_EQ(SlotDirectories(), 1u);
  fs::remove(file);
  fs::rename(file + ".kept", file);
  EXPECT_TRUE(WaitFor(*store->FindOrNull("a")).granted());
  ValueOrDie(store->Register("b", Made(12), {}));
  EXPECT_FALSE(StatusFor(*store, "b").pinned);
  EXPECT_EQ(StatusFor(*store, "a").pool->members.size(), 2u);
}

TEST_F(LiveStorePoolTest, ANameThatCouldNotBeRestoredCanBeUnloaded) {
  ValueOrDie(Pooled()->Register("a", Made(11), {}));
  {
    const auto store = Pooled(BytesOf("adapter") / 2);
    EXPECT_EQ(store->FindOrNull("a"), nullptr);
    EXPECT_NE(Warnings().find("not restored"), std::string::npos) << Warnings();
    DF_EXPECT_OK(store->Retire("a", ""));
    EXPECT_EQ(store->Retire("a", "").code(), StatusCode::kNotFound);
  }
  EXPECT_EQ(Pooled()->FindOrNull("a"), nullptr);
  EXPECT_TRUE(StateOnDisk().slots.empty());
}

TEST_F(LiveStorePoolTest, ADamagedSlotIsToldOfAndAllElseIsServed) {
  for (const std::string what : {"directory", "tensors", "bytes"}) {
    SetUp();
    warnings_.clear();
    std::string slot;
    {
      const auto store = Pooled(UINT64_MAX, 2 * kOne);
      ValueOrDie(store->Register("a", Made(11), {}));
      ValueOrDie(store->Register("b", Made(12), {}));
      slot = StatusFor(*store, "a").pool->slot;
    }
    const std::string directory = PoolPath() + "/slots/" + slot;
    if (what == "directory") fs::remove_all(directory);
    if (what == "tensors") fs::remove(directory + "/adapter_model.safetensors");
    if (what == "bytes") FlipLastBit(directory + "/adapter_model.safetensors");
    const auto store = Pooled(UINT64_MAX, 2 * kOne);
    EXPECT_NE(Warnings().find("slot " + slot), std::string::npos) << what << Warnings();
    EXPECT_NE(Warnings().find("pool evict " + PoolPath() + " --slot " + slot), std::string::npos) << Warnings();
    EXPECT_EQ(store->FindOrNull("a"), nullptr);
    EXPECT_TRUE(WaitFor(*store->FindOrNull("b")).granted());
    ValueOrDie(store->Register("a", Made(11), {}));
    EXPECT_TRUE(WaitFor(*store->FindOrNull("a")).granted());
    EXPECT_EQ(SlotDirectories(), 2u);
    DF_EXPECT_OK(store->Retire("a", ""));
  }
}

TEST_F(LiveStorePoolTest, ARestoreEndsWhenItIsGivenUp) {
  {
    const auto store = Pooled(UINT64_MAX, 2 * kOne);
    ValueOrDie(store->Register("a", Made(11), {}));
    ValueOrDie(store->Register("b", Made(12), {}));
  }
  const auto store =
      Make({.state_file = Path("state"), .pool = PoolSettings{.budget_bytes = 2 * kOne}, .pool_directory = PoolPath()});
  int n_asked = 0;
  EXPECT_FALSE(store->RestoreAndWatch({.gives_up = [&n_asked] { return ++n_asked == 2; }}));
  EXPECT_EQ(n_asked, 2);
  EXPECT_NE(store->FindOrNull("a"), nullptr);
  EXPECT_EQ(store->FindOrNull("b"), nullptr);
}

TEST_F(LiveStorePoolTest, ARestartKeepsWhatWasGivenAsTheRoot) {
  std::string before;
  {
    const auto store = Pooled();
    ValueOrDie(store->Register("a", Made(11), {.root = "made a"}));
    ValueOrDie(store->Register("b", Made(12), {.root = "made b"}));
    before = Picture(*store);
  }
  EXPECT_NE(before.find("made a"), std::string::npos);
  EXPECT_EQ(Picture(*Pooled()), before);
}

}  // namespace
}  // namespace df
