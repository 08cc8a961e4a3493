// What drains for somebody takes leases again when he has gone, and whoever was refused hears of it at once.
#include <atomic>
#include <thread>

#include "store/live_store_fixture.h"

namespace df {
namespace {

using testing::ValueOrDie;

// Room for one of two variants. "busy" is leased and drains for "waiting"; somebody was refused a lease of it for that.
class LiveStoreWaiting : public LiveStoreTest {
 protected:
  void SetUp() override {
    store_ = Make({.budget_bytes = std::max(BytesOf("delta"), BytesOf("delta2")), .clock = clock_});
    busy_ = ValueOrDie(store_->Register("busy", Path("delta"), {}));
    waiting_ = ValueOrDie(store_->Register("waiting", Path("delta2"), {}));
    ASSERT_TRUE(Eventually([&] { return (lease_ = Ask(*busy_)).granted(); }));
    clock_->Advance(10'000'000);
    EXPECT_FALSE(Ask(*waiting_).granted());
    clock_->Advance(5'000'000);
    ASSERT_TRUE(Eventually([&] {
      EXPECT_FALSE(Ask(*waiting_).granted());
      return !Ask(*busy_).granted();
    }));
    store_->SetWaker([this] {
      if (std::this_thread::get_id() == here_) n_wakes_here_ += 1;
      n_wakes_ += 1;
    });
  }
  void TearDown() override { store_->SetWaker({}); }
  LeaseAttempt Ask(const Variant& variant) const { return variant.generation->TryLease(clock_->NowUs()); }

  const std::shared_ptr<ManualClock> clock_ = std::make_shared<ManualClock>();
  const std::thread::id here_ = std::this_thread::get_id();
  std::atomic<int> n_wakes_{0}, n_wakes_here_{0};
  std::unique_ptr<LiveStore> store_;
  std::shared_ptr<const Variant> busy_, waiting_;
  LeaseAttempt lease_;
};

TEST_F(LiveStoreWaiting, APinTellsThoseWhoWereRefusedAtOnce) {
  DF_EXPECT_OK(store_->Pin("busy", ""));
  EXPECT_EQ(n_wakes_here_, 1) << "not only at the next look";
  EXPECT_TRUE(Ask(*busy_).granted());
}

TEST_F(LiveStoreWaiting, APinThatComesWithAnotherNameDoesTheSame) {
  ValueOrDie(store_->Register("again", Path("delta"), {.pinned = true}));
  EXPECT_EQ(n_wakes_here_, 1) << "not only at the next look";
  EXPECT_TRUE(Ask(*busy_).granted());
}

TEST_F(LiveStoreWaiting, ItTakesLeasesAgainWhenNobodyWaitsForTheOtherAnyMore) {
  waiting_->generation->EndAsk();
  EXPECT_TRUE(Eventually([&] { return n_wakes_ > 0; }));
  EXPECT_TRUE(Ask(*busy_).granted());
  EXPECT_EQ(store_->Stats().waiting_names, std::vector<std::string>());
}

TEST_F(LiveStoreWaiting, WhenItsLeaseEndsTheOtherIsLoaded) {
  lease_ = {};
  LeaseAttempt other;
  ASSERT_TRUE(Eventually([&] { return (other = Ask(*waiting_)).granted(); }));
  EXPECT_EQ(StatusFor(*store_, "busy").bytes, 0u);
}

}  // namespace
}  // namespace df
