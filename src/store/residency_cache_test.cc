#include "store/residency_cache.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/rng.h"
#include "store/residency_fixture.h"
#include "testing/status_matchers.h"

namespace df {
namespace {

TEST(ResidencyCache, LoadsWhatIsAskedForOnceAndLeasesItToEverybody) {
  Driven driven(Budget(100));
  const CacheId id = driven.Add(60);
  EXPECT_EQ(driven.State(id), ResidencyState::kRegistered);
  for (int i = 0; i < 1000; ++i) EXPECT_FALSE(driven.Lease(id));
  EXPECT_EQ(driven.cache.NextLoad(driven.now_us), id);
  EXPECT_EQ(driven.cache.NextLoad(driven.now_us), std::nullopt);
  EXPECT_EQ(driven.cache.reserved_bytes(), 60u);
  EXPECT_EQ(driven.State(id), ResidencyState::kLoading);
  EXPECT_FALSE(driven.Lease(id));
  driven.cache.LoadDone(id, 60, driven.now_us);
  for (int i = 0; i < 1000; ++i) EXPECT_TRUE(driven.Lease(id));
  EXPECT_EQ(driven.cache.View(id, driven.now_us).n_leases, 1000u);
  EXPECT_EQ(driven.cache.stats().loads, 1u);
}

TEST(ResidencyCache, ServesThoseWhoWaitInTheOrderInWhichTheyBegan) {
  CacheOptions options = Budget(100);
  options.max_loads = 3;
  Driven driven(options);
  const CacheId a = driven.Add(30), b = driven.Add(30), c = driven.Add(30);
  for (const CacheId id : {c, a, b, c}) {
    EXPECT_FALSE(driven.Lease(id));
    ++driven.now_us;
  }
  EXPECT_EQ(driven.cache.NextLoad(driven.now_us), c);
  EXPECT_EQ(driven.cache.NextLoad(driven.now_us), a);
  EXPECT_EQ(driven.cache.NextLoad(driven.now_us), b);
}

TEST(ResidencyCache, HoldsAReservationUntilTheMemoryIsGivenBack) {
  Driven driven(Budget(100));
  const CacheId a = driven.Add(60), b = driven.Add(60);
  driven.UseOnce(a);
  EXPECT_FALSE(driven.Lease(b));
  ++driven.now_us;
  EXPECT_EQ(driven.cache.NextLoad(driven.now_us), std::nullopt);
  EXPECT_EQ(driven.cache.NextDrop(driven.now_us), a);
  EXPECT_EQ(driven.cache.reserved_bytes(), 60u);
  EXPECT_EQ(driven.cache.NextLoad(driven.now_us), std::nullopt);  // a's memory is still there
  EXPECT_FALSE(driven.Lease(a));
  driven.cache.Dropped(a, driven.now_us);
  EXPECT_EQ(driven.cache.NextLoad(driven.now_us), b);
  EXPECT_EQ(driven.cache.stats().evictions.at(EvictionCause::kBudget), 1u);
}

TEST(ResidencyCache, EvictsWhatEarnsLeastForItsBytes) {
  CacheOptions options = Budget(100);
  options.auto_pin = 0;
  Driven driven(options);
  const CacheId big = driven.Add(60), small = driven.Add(30), cold = driven.Add(10), wanted = driven.Add(20);
  for (int i = 0; i < 4; ++i) driven.UseOnce(big);  // 4 / 60 a byte
  for (int i = 0; i < 3; ++i) driven.UseOnce(small);
  driven.UseOnce(cold);
  driven.UseOnce(wanted);
  EXPECT_FALSE(driven.IsIn(big));
  EXPECT_TRUE(driven.IsIn(small) && driven.IsIn(cold));
}

TEST(ResidencyCache, RatesHalveInFiveMinutes) {
  Driven driven(Budget(100));
  const CacheId id = driven.Add(1);
  for (int i = 0; i < 10; ++i) driven.UseOnce(id);
  const double before = driven.cache.View(id, driven.now_us).requests_per_s;
  driven.now_us += 300 * kSecond;
  EXPECT_NEAR(driven.cache.View(id, driven.now_us).requests_per_s, before / 2, before * 1e-12);
}

TEST(ResidencyCache, NeverEvictsWhatIsPinnedOrLeased) {
  Driven driven(Budget(100));
  const CacheId pinned = driven.Add(40), leased = driven.Add(40), wanted = driven.Add(50);
  DF_EXPECT_OK(driven.cache.SetPinned(pinned, true, driven.now_us));
  EXPECT_EQ(driven.Settle(), std::vector{pinned});  // without being asked for
  EXPECT_FALSE(driven.Lease(leased));
  driven.Settle();
  EXPECT_TRUE(driven.Lease(leased));
  EXPECT_FALSE(driven.Lease(wanted));
  for (int i = 0; i < 100; ++i, driven.now_us += kSecond) {
    driven.Lease(wanted);
    EXPECT_TRUE(driven.Settle().empty());
  }
  EXPECT_EQ(driven.cache.Evict(pinned, driven.now_us).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(driven.cache.Evict(leased, driven.now_us).code(), StatusCode::kFailedPrecondition);
  driven.cache.EndLease(leased, driven.now_us);
  EXPECT_EQ(driven.Settle(), std::vector{wanted});
}

TEST(ResidencyCache, KeepsWhatWasLoadedForSomebodyUntilItWasLeasedOnce) {
  Driven driven(Budget(60));
  const CacheId a = driven.Add(60), b = driven.Add(60);
  EXPECT_FALSE(driven.Lease(a));
  driven.now_us += 1;
  EXPECT_FALSE(driven.Lease(b));
  EXPECT_EQ(driven.Settle(), std::vector{a});
  EXPECT_TRUE(driven.Settle().empty());  // b waits: nobody has used a
  EXPECT_TRUE(driven.Lease(a));
  driven.cache.EndLease(a, driven.now_us);
  EXPECT_EQ(driven.Settle(), std::vector{b});
}

TEST(ResidencyCache, ForgetsAWishThatIsNotRepeated) {
  Driven driven(Budget(60));
  const CacheId a = driven.Add(60), b = driven.Add(60);
  EXPECT_FALSE(driven.Lease(a));
  EXPECT_EQ(driven.Settle(), std::vector{a});  // and whoever asked goes away
  EXPECT_FALSE(driven.Lease(b));
  driven.now_us += 29 * kSecond;
  EXPECT_FALSE(driven.Lease(b));
  EXPECT_TRUE(driven.Settle().empty());
  driven.now_us += 2 * kSecond;
  EXPECT_EQ(driven.Settle(), std::vector{b});
}

TEST(ResidencyCache, TellsEveryWaiterWhyALoadFailedHoweverLate) {
  Driven driven(Budget(60));
  const CacheId id = driven.Add(60);
  EXPECT_FALSE(driven.Lease(id));
  driven.Fail(id, Corrupt("a flipped bit"));
  EXPECT_EQ(driven.cache.reserved_bytes(), 0u);
  EXPECT_EQ(driven.State(id), ResidencyState::kFailed);
  driven.now_us += 20 * kSecond;  // long after the time to try again
  for (int i = 0; i < 3; ++i) {
    const CacheGrant told = driven.cache.TryLease(id, driven.now_us);
    EXPECT_FALSE(told.granted);
    EXPECT_EQ(told.failure.message(), "a flipped bit");
  }
  EXPECT_EQ(driven.cache.NextLoad(driven.now_us), std::nullopt);
  driven.now_us += 1;
  DF_EXPECT_OK(driven.cache.TryLease(id, driven.now_us).failure);  // a new try
  EXPECT_EQ(driven.Settle(), std::vector{id});
  EXPECT_TRUE(driven.Lease(id));
}

TEST(ResidencyCache, BacksOffFromOneSecondToFiveMinutes) {
  Driven driven(Budget(60));
  const CacheId id = driven.Add(60);
  int64_t expected_us = kSecond;
  for (int i = 0; i < 12; ++i) {
    DF_EXPECT_OK(driven.cache.TryLease(id, driven.now_us).failure);
    driven.Fail(id, Corrupt("still broken"));
    EXPECT_EQ(driven.cache.View(id, driven.now_us).retry_at_us - driven.now_us, expected_us);
    EXPECT_FALSE(driven.cache.TryLease(id, driven.now_us + expected_us - 1).failure.ok());
    driven.now_us += expected_us;
    expected_us = std::min(2 * expected_us, 300 * kSecond);
  }
  EXPECT_EQ(expected_us, 300 * kSecond);
  EXPECT_FALSE(driven.Lease(id));
  driven.Settle();
  EXPECT_TRUE(driven.Lease(id));
  DF_EXPECT_OK(driven.cache.View(id, driven.now_us).failure);
}

// Its files were found good, so nobody waits out what the former ones earned.
TEST(ResidencyCache, ForgetsAFailureWhenItsNameIsGivenAgain) {
  Driven driven(Budget(60));
  const CacheId id = driven.Add(60);
  DF_EXPECT_OK(driven.cache.SetPinned(id, true, driven.now_us));
  driven.Fail(id, Corrupt("broken"));
  EXPECT_EQ(driven.cache.NextLoad(driven.now_us), std::nullopt);
  driven.cache.Revive(id);
  DF_EXPECT_OK(driven.cache.View(id, driven.now_us).failure);
  EXPECT_EQ(driven.Settle(), std::vector{id});
  EXPECT_TRUE(driven.Lease(id));
}

TEST(ResidencyCache, TriesAPinnedOneAgainByItself) {
  Driven driven(Budget(60));
  const CacheId id = driven.Add(60);
  DF_EXPECT_OK(driven.cache.SetPinned(id, true, driven.now_us));
  driven.Fail(id, Corrupt("broken"));
  EXPECT_EQ(driven.cache.NextLoad(driven.now_us + kSecond - 1), std::nullopt);
  driven.now_us += kSecond;
  EXPECT_EQ(driven.Settle(), std::vector{id});
}

TEST(ResidencyCache, AFailureKeepsNobodyElseWaiting) {
  Driven driven(Budget(100));
  const CacheId broken = driven.Add(100), sound = driven.Add(100);
  EXPECT_FALSE(driven.Lease(broken));
  driven.now_us += 1;
  EXPECT_FALSE(driven.Lease(sound));
  driven.Fail(broken, Corrupt("broken"));
  EXPECT_EQ(driven.Settle(), std::vector{sound});
}

// Somebody's requests overlap without end; the other's wait is bounded all the same.
TEST(ResidencyCache, TakesNoNewLeasesWhereSomebodyHasWaitedLongEnough) {
  Driven driven(Budget(60));
  const CacheId busy = driven.Add(60), waiting = driven.Add(60);
  driven.UseOnce(busy);
  ASSERT_TRUE(driven.Lease(busy));
  const int64_t start_us = driven.now_us;
  bool is_served = false;
  for (int i = 0; i < 100 && !is_served; ++i) {
    driven.now_us += kSecond / 10;
    const bool again = driven.Lease(busy);  // before the former one ends
    if (again || driven.cache.View(busy, driven.now_us).n_leases > 0) driven.cache.EndLease(busy, driven.now_us);
    is_served = driven.Lease(waiting);
    driven.Settle();
    if (again) continue;
    EXPECT_GE(driven.now_us - start_us, CacheOptions().patience_us);
    if (driven.cache.View(busy, driven.now_us).n_leases == 0) is_served = driven.Lease(waiting);
  }
  EXPECT_TRUE(is_served);
  EXPECT_LE(driven.now_us - start_us, CacheOptions().patience_us + kSecond);
}

// One that takes no new leases, with somebody who was refused one for that.
struct Draining {
  Draining() : driven(Budget(60)), busy(driven.Add(60)), waiting(driven.Add(60)) {
    driven.UseOnce(busy);
    EXPECT_TRUE(driven.Lease(busy));
    EXPECT_FALSE(driven.Lease(waiting));
    driven.now_us += 20 * kSecond;
    EXPECT_TRUE(driven.Settle().empty());
    EXPECT_TRUE(driven.cache.View(busy, driven.now_us).draining);
    EXPECT_FALSE(driven.cache.TakeReopened());
    EXPECT_FALSE(driven.Lease(busy));
  }
  Driven driven;
  const CacheId busy, waiting;
};

TEST(ResidencyCache, SaysThatLeasesAreGivenAgainWhenTheOneTheyWereKeptForHasGone) {
  Draining draining;
  Driven& driven = draining.driven;
  driven.now_us += 15 * kSecond;  // `waiting` was asked for 35 s ago and is forgotten
  EXPECT_TRUE(driven.Settle().empty());
  EXPECT_TRUE(driven.cache.TakeReopened());
  EXPECT_FALSE(driven.cache.TakeReopened()) << "once";
  EXPECT_TRUE(driven.Lease(draining.busy));
}

TEST(ResidencyCache, SaysThatLeasesAreGivenAgainWhenAnOperatorPins) {
  Draining draining;
  Driven& driven = draining.driven;
  DF_EXPECT_OK(driven.cache.SetPinned(draining.busy, true, driven.now_us));
  EXPECT_TRUE(driven.cache.TakeReopened());
  EXPECT_TRUE(driven.Lease(draining.busy));
}

TEST(ResidencyCache, SaysThatLeasesAreGivenAgainWhenNobodyWaitsForTheOtherAnyMore) {
  Draining draining;
  Driven& driven = draining.driven;
  driven.cache.EndAsk(draining.waiting, driven.now_us);
  EXPECT_TRUE(driven.Settle().empty());
  EXPECT_TRUE(driven.cache.TakeReopened());
  EXPECT_TRUE(driven.Lease(draining.busy));
}

TEST(ResidencyCache, NothingIsLoadedForWhoHasGone) {
  Driven driven(Budget(60));
  const CacheId id = driven.Add(60);
  EXPECT_FALSE(driven.Lease(id));
  driven.cache.EndAsk(id, driven.now_us);
  EXPECT_FALSE(driven.cache.View(id, driven.now_us).wanted);
  EXPECT_TRUE(driven.Settle().empty());
}

TEST(ResidencyCache, WhoComesBackSoonHasHisFormerTurn) {
  Driven driven(Budget(60));
  const CacheId busy = driven.Add(60), first = driven.Add(60), second = driven.Add(60);
  driven.UseOnce(busy);
  ASSERT_TRUE(driven.Lease(busy));
  EXPECT_FALSE(driven.Lease(first));
  driven.now_us += kSecond;
  EXPECT_FALSE(driven.Lease(second));
  driven.cache.EndAsk(first, driven.now_us);
  driven.now_us += 29 * kSecond;
  EXPECT_FALSE(driven.Lease(first));
  EXPECT_FALSE(driven.Lease(second));
  driven.cache.EndLease(busy, driven.now_us);
  EXPECT_EQ(driven.Settle(), std::vector{first});
}

TEST(ResidencyCache, WhoComesBackLateWaitsAnew) {
  Driven driven(Budget(60));
  const CacheId busy = driven.Add(60), first = driven.Add(60), second = driven.Add(60);
  driven.UseOnce(busy);
  ASSERT_TRUE(driven.Lease(busy));
  EXPECT_FALSE(driven.Lease(first));
  driven.now_us += kSecond;
  EXPECT_FALSE(driven.Lease(second));
  driven.cache.EndAsk(first, driven.now_us);
  driven.now_us += 20 * kSecond;
  EXPECT_FALSE(driven.Lease(second));
  driven.now_us += 15 * kSecond;
  EXPECT_FALSE(driven.Lease(first));
  driven.cache.EndLease(busy, driven.now_us);
  EXPECT_EQ(driven.Settle(), std::vector{second});
}

TEST(ResidencyCache, HasNothingToSayWhenNobodyWasRefused) {
  Draining draining;
  Driven& driven = draining.driven;
  driven.now_us += 40 * kSecond;  // both are forgotten
  EXPECT_TRUE(driven.Settle().empty());
  EXPECT_FALSE(driven.cache.TakeReopened());
  EXPECT_TRUE(driven.Lease(draining.busy));
}

TEST(ResidencyCache, FifteenVariantsThroughSixPlacesAllGetTheirTurn) {
  CacheOptions options = Budget(6);
  Driven driven(options);
  std::vector<CacheId> ids;
  for (int i = 0; i < 15; ++i) ids.push_back(driven.Add(1));
  std::map<CacheId, int64_t> waiting_since;
  std::multimap<int64_t, CacheId> running;  // end -> id
  int64_t longest_us = 0;
  std::map<CacheId, int> served;
  for (int step = 0; step < 6000; ++step) {
    driven.now_us += kSecond / 20;
    while (!running.empty() && running.begin()->first <= driven.now_us) {
      driven.cache.EndLease(running.begin()->second, driven.now_us);
      running.erase(running.begin());
    }
    for (const CacheId id : ids) {  // everybody always wants: one new request each twentieth of a second
      if (driven.Lease(id)) {
        ++served[id];
        running.emplace(driven.now_us + kSecond, id);
        if (const auto at = waiting_since.find(id); at != waiting_since.end()) {
          longest_us = std::max(longest_us, driven.now_us - at->second);
          waiting_since.erase(at);
        }
      } else {
        waiting_since.emplace(id, driven.now_us);
      }
    }
    driven.Settle();
  }
  for (const auto& [id, since] : waiting_since) longest_us = std::max(longest_us, driven.now_us - since);
  for (const CacheId id : ids) EXPECT_GT(served[id], 100) << id;
  // 14 others may be before one in the queue. The first in it waits its patience, or as long as the one to go was
  // there less than that, and a request: 3 s a place, 6 places at a time.
  EXPECT_LE(longest_us, 14 * 3 * kSecond);
}

TEST(ResidencyCache, AnswersAtOnceWhatCannotFitBesideThePinned) {
  Driven driven(Budget(100));
  const CacheId pinned = driven.Add(60), other = driven.Add(50);
  EXPECT_EQ(driven.cache.CheckFits({.bytes = 101}).code(), StatusCode::kResourceExhausted);
  DF_EXPECT_OK(driven.cache.SetPinned(pinned, true, driven.now_us));
  EXPECT_EQ(driven.cache.CheckFits({.bytes = 50}).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(driven.cache.SetPinned(other, true, driven.now_us).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(driven.cache.TryLease(other, driven.now_us).failure.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(driven.Settle(), std::vector{pinned});
  DF_EXPECT_OK(driven.cache.SetPinned(pinned, false, driven.now_us));
  driven.UseOnce(other);
  EXPECT_FALSE(driven.IsIn(pinned));
}

TEST(ResidencyCache, LetsTheIdleGoButForTheMostWanted) {
  CacheOptions options = Budget(100);
  options.auto_pin = 1;
  Driven driven(options);
  const CacheId wanted = driven.Add(10), other = driven.Add(10);
  for (int i = 0; i < 3; ++i) driven.UseOnce(wanted);
  driven.UseOnce(other);
  driven.now_us += 599 * kSecond;
  driven.Settle();
  EXPECT_TRUE(driven.IsIn(other));
  driven.now_us += kSecond;
  driven.Settle();
  EXPECT_TRUE(driven.IsIn(wanted));
  EXPECT_FALSE(driven.IsIn(other));
  EXPECT_EQ(driven.cache.stats().evictions.at(EvictionCause::kIdle), 1u);
}

TEST(ResidencyCache, AutoPinsGoLastButNeverHoldOut) {
  CacheOptions options = Budget(60);
  options.auto_pin = 2;
  Driven driven(options);
  const CacheId heavy = driven.Add(40), light = driven.Add(10), rare = driven.Add(10), wanted = driven.Add(10);
  for (int i = 0; i < 9; ++i) driven.UseOnce(heavy);  // 9 / 40 a byte, but the most wanted
  for (int i = 0; i < 8; ++i) driven.UseOnce(light);
  for (int i = 0; i < 4; ++i) driven.UseOnce(rare);
  driven.UseOnce(wanted);
  EXPECT_TRUE(driven.IsIn(heavy) && driven.IsIn(light));
  const CacheId huge = driven.Add(60);
  driven.UseOnce(huge);
  EXPECT_TRUE(driven.IsIn(huge));
}

TEST(ResidencyCache, ARetiredOneEndsWithItsLastLease) {
  Driven driven(Budget(100));
  const CacheId id = driven.Add(60);
  driven.UseOnce(id);
  ASSERT_TRUE(driven.Lease(id));
  driven.cache.Retire(id);
  driven.Settle();
  EXPECT_TRUE(driven.IsIn(id));
  driven.cache.EndLease(id, driven.now_us);
  driven.Settle();
  EXPECT_FALSE(driven.IsIn(id));
  EXPECT_EQ(driven.cache.reserved_bytes(), 0u);
  EXPECT_EQ(driven.cache.stats().evictions.at(EvictionCause::kRetired), 1u);
  EXPECT_TRUE(driven.cache.Knows(id));
  driven.UseOnce(id);  // a request that was queued before
  driven.Settle();
  EXPECT_FALSE(driven.IsIn(id));
  driven.cache.Forget(id);
  EXPECT_FALSE(driven.cache.Knows(id));
}

TEST(ResidencyCache, ForgetsOneThatIsLoadingWhenItsLoadHasEnded) {
  Driven driven(Budget(100));
  const CacheId id = driven.Add(60);
  EXPECT_FALSE(driven.Lease(id));
  ASSERT_EQ(driven.cache.NextLoad(driven.now_us), id);
  driven.cache.Forget(id);
  EXPECT_TRUE(driven.cache.Knows(id));
  driven.cache.LoadDone(id, 60, driven.now_us);
  driven.Settle();
  EXPECT_FALSE(driven.cache.Knows(id));
  EXPECT_EQ(driven.cache.reserved_bytes(), 0u);
}

TEST(ResidencyCache, LoadsAParentBeforeItsChildAndHoldsIt) {
  Driven driven(Budget(100));
  const CacheId parent = driven.Add(60), child = driven.Add(10, parent), other = driven.Add(60);
  EXPECT_FALSE(driven.Lease(child));
  EXPECT_EQ(driven.Settle(), (std::vector{parent, child}));
  ASSERT_TRUE(driven.Lease(child));
  EXPECT_EQ(driven.cache.Evict(parent, driven.now_us).code(), StatusCode::kFailedPrecondition);
  EXPECT_FALSE(driven.Lease(other));
  EXPECT_TRUE(driven.Settle().empty());
  driven.cache.EndLease(child, driven.now_us);
  EXPECT_EQ(driven.Settle(), std::vector{other});  // the child went, then the parent
  EXPECT_FALSE(driven.IsIn(parent) || driven.IsIn(child));
}

TEST(ResidencyCache, AParentKeepsGivingLeasesWhileItsChildLoads) {
  ResidencyCache cache({.budget_bytes = 100, .max_loads = 1, .patience_us = 10});
  const CacheId parent = cache.Add({.bytes = 40});
  const CacheId child = cache.Add({.bytes = 40, .parent = parent});
  const CacheId other = cache.Add({.bytes = 60});
  cache.Prefetch(parent, 0);
  cache.LoadDone(*cache.NextLoad(0), 40, 0);
  ASSERT_TRUE(cache.TryLease(parent, 0).granted);
  DF_EXPECT_OK(cache.SetPinned(child, true, 1));
  ASSERT_EQ(cache.NextLoad(1), child);
  DF_EXPECT_OK(cache.SetPinned(child, false, 2));
  EXPECT_FALSE(cache.TryLease(other, 3).granted);
  EXPECT_EQ(cache.NextDrop(1000), std::nullopt);
  EXPECT_EQ(cache.CheckInvariants(), "");
  EXPECT_FALSE(cache.View(parent, 1000).draining);
  EXPECT_FALSE(cache.View(child, 1000).draining);
}

TEST(ResidencyCache, AChildFailsWithItsParent) {
  Driven driven(Budget(100));
  const CacheId parent = driven.Add(60), child = driven.Add(10, parent);
  EXPECT_FALSE(driven.Lease(child));
  driven.Fail(parent, Corrupt("a broken parent"));
  EXPECT_EQ(driven.cache.TryLease(child, driven.now_us + 5 * kSecond).failure.message(), "a broken parent");
}

TEST(ResidencyCache, APrefetchComesLastAndDisturbsNobodyWhoRuns) {
  CacheOptions options = Budget(60);
  Driven driven(options);
  const CacheId running = driven.Add(60), prefetched = driven.Add(60);
  driven.UseOnce(running);
  ASSERT_TRUE(driven.Lease(running));
  driven.cache.Prefetch(prefetched, driven.now_us);
  for (int i = 0; i < 100; ++i, driven.now_us += kSecond) {
    EXPECT_TRUE(driven.Settle().empty());
    EXPECT_TRUE(driven.Lease(running));
    driven.cache.EndLease(running, driven.now_us);
  }
  driven.cache.EndLease(running, driven.now_us);
  EXPECT_TRUE(driven.Settle().empty()) << "it was used a moment ago";
  driven.now_us += CacheOptions().patience_us;
  EXPECT_EQ(driven.Settle(), std::vector{prefetched});
}

TEST(ResidencyCache, CountsRequestsAndThoseThatFoundItThere) {
  Driven driven(Budget(60));
  const CacheId id = driven.Add(60);
  driven.cache.CountRequest(id, driven.now_us);  // asks as well
  EXPECT_EQ(driven.Settle(), std::vector{id});
  driven.cache.CountRequest(id, driven.now_us);
  EXPECT_EQ(driven.cache.stats().lookups, 2u);
  EXPECT_EQ(driven.cache.stats().hits, 1u);
}

// Every input in any order, seeded.
class RandomWalk {
 public:
  explicit RandomWalk(uint64_t seed)
      : seed_(seed), cache_([&] {
          CacheOptions options = Budget(10);
          options.max_loads = 1 + seed % 3;
          options.auto_pin = seed % 4;
          return options;
        }()) {}

  const ResidencyCache& cache() const { return cache_; }
  void Step() {
    ++step_;
    now_us_ += static_cast<int64_t>(Draw(0, kSecond));
    const size_t action = Draw(2, 14);
    if (ids_.size() < 3 || (action == 0 && ids_.size() < 12)) {
      ids_.push_back(cache_.Add({.bytes = 1 + Draw(3, 5)}));
    } else if (action < 5) {
      Operate(action);
    } else if (action < 11) {
      Work(action);
    } else if (const CacheId id = Pick(ids_); cache_.TryLease(id, now_us_).granted) {
      leases_.push_back(id);
    }
  }

 private:
  size_t Draw(uint64_t k, size_t n) const { return static_cast<size_t>(RandomBits(seed_ * 5000 + step_, k) % n); }
  CacheId Pick(const std::vector<CacheId>& from) const { return from[Draw(1, from.size())]; }
  CacheId Take(std::vector<CacheId>& from) const {
    const CacheId id = Pick(from);
    from.erase(std::ranges::find(from, id));
    return id;
  }
  void Operate(size_t action) {
    Status ignored;
    switch (action) {
      case 1: cache_.Forget(Take(ids_)); break;
      case 2: ignored = cache_.SetPinned(Pick(ids_), Draw(3, 4) == 0, now_us_); break;
      case 3: cache_.Prefetch(Pick(ids_), now_us_); break;
      default: ignored = cache_.Evict(Pick(ids_), now_us_); break;
    }
  }
  void Work(size_t action) {
    if (action == 5 && !loading_.empty()) cache_.LoadFailed(Take(loading_), Corrupt("seeded"), now_us_);
    if (action == 6 && !loading_.empty()) {
      const CacheId id = Take(loading_);
      cache_.LoadDone(id, cache_.View(id, now_us_).reserved_bytes, now_us_);
    }
    if (action == 7 && !leaving_.empty()) cache_.Dropped(Take(leaving_), now_us_);
    if (action == 8 && !leases_.empty()) cache_.EndLease(Take(leases_), now_us_);
    if (const auto id = action == 9 ? cache_.NextLoad(now_us_) : std::nullopt) loading_.push_back(*id);
    if (const auto id = action == 10 ? cache_.NextDrop(now_us_) : std::nullopt) leaving_.push_back(*id);
  }

  const uint64_t seed_;
  ResidencyCache cache_;
  std::vector<CacheId> ids_, leases_, loading_, leaving_;
  int64_t now_us_ = 0;
  uint64_t step_ = 0;
};

TEST(ResidencyCache, KeepsItsInvariantsWhateverHappens) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    RandomWalk walk(seed);
    for (int step = 0; step < 2000; ++step) {
      walk.Step();
      ASSERT_EQ(walk.cache().CheckInvariants(), "") << "seed " << seed << " step " << step;
    }
    EXPECT_GT(walk.cache().stats().loads, 10u) << seed;
  }
}

TEST(LoadHistogram, SortsTimesIntoTheIntervalsThatEndWithThem) {
  LoadHistogram histogram;
  for (const double seconds : {0.0, 0.005, 0.0051, 60.0, 61.0}) histogram.Add(seconds);
  EXPECT_EQ(histogram.counts.front(), 2u);
  EXPECT_EQ(histogram.counts[1], 1u);
  EXPECT_EQ(histogram.counts[kLoadSeconds.size() - 1], 1u);
  EXPECT_EQ(histogram.counts.back(), 1u);
  EXPECT_DOUBLE_EQ(histogram.sum_s, 121.0101);
}

TEST(ResidencyCache, SaysWhatPinsTakeOfTheBudget) {
  Driven driven(Budget(100));
  const CacheId parent = driven.Add(30), pinned = driven.Add(60), child = driven.Add(20, parent);
  EXPECT_TRUE(driven.cache.KeptOut().empty());
  EXPECT_EQ(driven.cache.CheckFits({.bytes = 101}).message(),
            "needs 101 bytes; the budget for variants is 100 bytes (--variant-bytes)");
  DF_EXPECT_OK(driven.cache.SetPinned(pinned, true, driven.now_us));
  const std::map<CacheId, Status> kept_out = driven.cache.KeptOut();
  ASSERT_EQ(kept_out.size(), 1u);
  EXPECT_EQ(kept_out.at(child).message(),
            "needs 20 bytes, 50 bytes with its parent; what is pinned, and tokenizers, take 60 bytes of the 100 "
            "bytes for variants: unpin something or raise --variant-bytes");
  EXPECT_TRUE(driven.cache.TryLease(child, driven.now_us).kept_out);
  EXPECT_FALSE(driven.cache.TryLease(parent, driven.now_us).kept_out);
  EXPECT_EQ(driven.cache.CheckCharge(11).message(),
            "needs 11 bytes, 61 bytes with the largest variant; what is pinned, and tokenizers, take 60 bytes of the "
            "100 bytes for variants: unpin something or raise --variant-bytes");
}

}  // namespace
}  // namespace df
