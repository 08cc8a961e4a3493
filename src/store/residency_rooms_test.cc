// Who gets room, from whom, and who goes past whom.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/rng.h"
#include "store/residency_fixture.h"
#include "testing/status_matchers.h"

namespace df {
namespace {

constexpr int64_t kOvertakeUs = CacheOptions().overtake_us, kPatienceUs = CacheOptions().patience_us;

// A cache for 100 in which `busy`, 60, is leased all the time.
struct Busy {
  Busy() : driven(Budget(100)), busy(driven.Add(60)) {
    driven.UseOnce(busy);
    EXPECT_TRUE(driven.Lease(busy));
    driven.now_us += 100 * kSecond;  // not new any more
  }
  bool Drains() const { return driven.cache.View(busy, driven.now_us).draining; }
  // Time passes in which those still want what they want.
  void Pass(int64_t us, const std::vector<CacheId>& wanted) {
    for (const int64_t end_us = driven.now_us + us; driven.now_us < end_us;) {
      driven.now_us = std::min(end_us, driven.now_us + kSecond);
      for (const CacheId id : wanted) EXPECT_FALSE(driven.Lease(id)) << id;
    }
  }
  Driven driven;
  const CacheId busy;
};

TEST(ResidencyRooms, ASmallOneGoesPastALargeOneThatWaitsForLeases) {
  Busy busy;
  Driven& driven = busy.driven;
  const CacheId large = driven.Add(70), small = driven.Add(40);
  EXPECT_FALSE(driven.Lease(large));
  EXPECT_FALSE(driven.Lease(small));
  EXPECT_EQ(driven.Settle(), std::vector{small});
}

TEST(ResidencyRooms, NobodyGoesPastOneThatHasWaitedLong) {
  Busy busy;
  Driven& driven = busy.driven;
  const CacheId large = driven.Add(70), small = driven.Add(40);
  EXPECT_FALSE(driven.Lease(large));
  busy.Pass(kOvertakeUs, {large});
  EXPECT_FALSE(driven.Lease(small));
  EXPECT_TRUE(driven.Settle().empty());
  EXPECT_TRUE(busy.Drains());
  driven.cache.EndLease(busy.busy, driven.now_us);
  EXPECT_EQ(driven.Settle(), std::vector{large});
}

TEST(ResidencyRooms, WhatALargeRoomHasOverIsForOthersAtAnyTime) {
  Busy busy;
  Driven& driven = busy.driven;
  const CacheId large = driven.Add(70), small = driven.Add(30);  // both fit beside each other
  EXPECT_FALSE(driven.Lease(large));
  busy.Pass(kOvertakeUs, {large});
  EXPECT_FALSE(driven.Lease(small));
  EXPECT_EQ(driven.Settle(), std::vector{small});
  EXPECT_TRUE(busy.Drains());
  ASSERT_TRUE(driven.Lease(small));
  driven.cache.EndLease(busy.busy, driven.now_us);
  EXPECT_EQ(driven.Settle(), std::vector{large});
}

TEST(ResidencyRooms, ALargeOneGetsItsTurnThoughSmallOnesNeverEnd) {
  Busy busy;
  Driven& driven = busy.driven;
  driven.cache.EndLease(busy.busy, driven.now_us);
  const CacheId large = driven.Add(100);
  std::vector<CacheId> small;
  for (int i = 0; i < 8; ++i) small.push_back(driven.Add(25));
  std::vector<CacheId> leased;
  EXPECT_FALSE(driven.Lease(large));
  const int64_t start_us = driven.now_us;
  uint64_t n_draws = 0;
  for (bool is_in = false; !is_in; driven.now_us += kSecond / 10) {
    ASSERT_LT(driven.now_us - start_us, kOvertakeUs + kPatienceUs + 3 * kSecond) << "the longest lease takes 2 s";
    while (leased.size() > 6 || (!leased.empty() && n_draws % 7 == 0)) {
      driven.cache.EndLease(leased.front(), driven.now_us);
      leased.erase(leased.begin());
      ++n_draws;
    }
    const CacheId next = small[RandomBits(1, n_draws++) % small.size()];
    if (driven.Lease(next)) leased.push_back(next);
    if (leased.size() > 2 && driven.now_us % (kSecond / 2) == 0) {
      driven.cache.EndLease(leased.front(), driven.now_us);
      leased.erase(leased.begin());
    }
    driven.Settle();
    is_in = driven.Lease(large);
  }
}

TEST(ResidencyRooms, MakesRoomForSeveralAtATime) {
  Driven driven(Budget(120));
  const CacheId a = driven.Add(60), b = driven.Add(60), first = driven.Add(60), second = driven.Add(60);
  for (const CacheId id : {a, b}) driven.UseOnce(id);
  for (const CacheId id : {a, b}) ASSERT_TRUE(driven.Lease(id));
  driven.now_us += kSecond * 5;
  for (const CacheId id : {first, second}) EXPECT_FALSE(driven.Lease(id));
  driven.now_us += kPatienceUs;
  EXPECT_TRUE(driven.Settle().empty());
  for (const CacheId id : {a, b}) EXPECT_TRUE(driven.cache.View(id, driven.now_us).draining) << id;
  for (const CacheId id : {a, b}) driven.cache.EndLease(id, driven.now_us);
  EXPECT_EQ(driven.Settle(), (std::vector{first, second}));
}

TEST(ResidencyRooms, ClosesNoMoreThanThereAreLoaders) {
  CacheOptions options = Budget(180);
  options.max_loads = 1;
  Driven driven(options);
  std::vector<CacheId> in, out;
  for (int i = 0; i < 3; ++i) in.push_back(driven.Add(60)), out.push_back(driven.Add(60));
  for (const CacheId id : in) driven.UseOnce(id);
  for (const CacheId id : in) ASSERT_TRUE(driven.Lease(id));
  driven.now_us += kSecond * 5;
  for (const CacheId id : out) EXPECT_FALSE(driven.Lease(id));
  driven.now_us += kPatienceUs;
  EXPECT_TRUE(driven.Settle().empty());
  EXPECT_EQ(std::ranges::count_if(in, [&](CacheId id) { return driven.cache.View(id, driven.now_us).draining; }), 1);
}

TEST(ResidencyRooms, WhatIsToGoTogetherIsClosedTogether) {
  // Two places are needed. One of them is idle, and would be leased again and again while the other's leases end.
  Driven driven(Budget(120));
  const CacheId a = driven.Add(60), b = driven.Add(60), large = driven.Add(120);
  for (const CacheId id : {a, b}) driven.UseOnce(id);
  ASSERT_TRUE(driven.Lease(a));
  driven.now_us += kSecond * 5;
  EXPECT_FALSE(driven.Lease(large));
  driven.now_us += kPatienceUs;
  EXPECT_TRUE(driven.Settle().empty());
  EXPECT_TRUE(driven.IsIn(b)) << "it goes when its going helps";
  EXPECT_FALSE(driven.Lease(b));
  driven.cache.EndLease(a, driven.now_us);
  EXPECT_EQ(driven.Settle(), std::vector{large});
}

TEST(ResidencyRooms, ClosesNobodyWhoseRoomIsNotNeeded) {
  // 100 of 160 are leased, the rest is ten idle ones of 6: all of those would not do, the leased one alone does.
  Driven driven(Budget(160));
  const CacheId leased = driven.Add(100), large = driven.Add(90);
  std::vector<CacheId> idle;
  for (int i = 0; i < 10; ++i) idle.push_back(driven.Add(6));
  driven.UseOnce(leased);
  for (const CacheId id : idle) driven.UseOnce(id);
  ASSERT_TRUE(driven.Lease(leased));
  driven.now_us += kSecond * 5;
  EXPECT_FALSE(driven.Lease(large));
  driven.now_us += kPatienceUs;
  EXPECT_TRUE(driven.Settle().empty());
  EXPECT_TRUE(driven.cache.View(leased, driven.now_us).draining);
  for (const CacheId id : idle) EXPECT_TRUE(driven.Lease(id));
}

TEST(ResidencyRooms, TakesLeasesAgainAtOnceThoughSomethingElseIsToBeDroppedFirst) {
  Busy busy;
  Driven& driven = busy.driven;
  const CacheId small = driven.Add(20), large = driven.Add(70);
  driven.UseOnce(small);
  EXPECT_FALSE(driven.Lease(large));
  busy.Pass(kPatienceUs, {large});
  EXPECT_TRUE(driven.Settle().empty());
  EXPECT_TRUE(busy.Drains());
  driven.cache.EndAsk(large, driven.now_us);
  DF_EXPECT_OK(driven.cache.Evict(small, driven.now_us));
  EXPECT_EQ(driven.cache.NextDrop(driven.now_us), small);
  EXPECT_FALSE(busy.Drains());
}

TEST(ResidencyRooms, APrefetchTakesNoRoomWhileSomebodyWaitsForIt) {
  Busy busy;
  Driven& driven = busy.driven;
  const CacheId large = driven.Add(70), small = driven.Add(40);
  EXPECT_FALSE(driven.Lease(large));
  driven.cache.Prefetch(small, driven.now_us);
  EXPECT_TRUE(driven.Settle().empty()) << "a request for it would get room";
  driven.cache.EndAsk(large, driven.now_us);
  EXPECT_EQ(driven.Settle(), std::vector{small});
}

TEST(ResidencyRooms, APrefetchMovesNothingThatWasUsedAMomentAgo) {
  Driven driven(Budget(60));
  const CacheId used = driven.Add(60), prefetched = driven.Add(60);
  driven.UseOnce(used);
  driven.cache.Prefetch(prefetched, driven.now_us);
  for (int i = 0; i < 20; ++i, driven.now_us += kPatienceUs / 2) {
    EXPECT_TRUE(driven.Settle().empty());
    driven.UseOnce(used);
  }
  driven.now_us += kPatienceUs;
  EXPECT_EQ(driven.Settle(), std::vector{prefetched});
}

TEST(ResidencyRooms, ARequestThatComesLaterSharesThePrefetchedLoadAndItsRank) {
  Busy busy;
  Driven& driven = busy.driven;
  const CacheId large = driven.Add(70), small = driven.Add(40);
  EXPECT_FALSE(driven.Lease(large));
  driven.cache.Prefetch(small, driven.now_us);
  EXPECT_TRUE(driven.Settle().empty());
  EXPECT_FALSE(driven.Lease(small));  // now somebody waits for it
  ASSERT_EQ(driven.cache.NextLoad(driven.now_us), small);
  driven.cache.Prefetch(small, driven.now_us);
  EXPECT_FALSE(driven.Lease(small));
  EXPECT_EQ(driven.cache.NextLoad(driven.now_us), std::nullopt) << "one load";
  driven.cache.LoadDone(small, 40, driven.now_us);
  EXPECT_TRUE(driven.Lease(small));
  EXPECT_EQ(driven.cache.stats().loads, 2u);
}

TEST(ResidencyRooms, TheParentOfOneThatWaitsIsNoRoomForThoseBehindIt) {
  Driven driven(Budget(100));
  const CacheId parent = driven.Add(40), child = driven.Add(60, parent), other = driven.Add(40), busy = driven.Add(60);
  driven.UseOnce(parent);
  driven.UseOnce(busy);
  ASSERT_TRUE(driven.Lease(busy));
  EXPECT_FALSE(driven.Lease(child));
  EXPECT_FALSE(driven.Lease(other));
  EXPECT_TRUE(driven.Settle().empty());
  EXPECT_TRUE(driven.IsIn(parent));
}

TEST(ResidencyRooms, KeepTheirInvariantsWhoeverComesAndGoes) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    CacheOptions options = Budget(100);
    options.max_loads = 1 + seed % 3;
    Driven driven(options);
    uint64_t k = 0;
    const auto draw = [&](uint64_t below) { return RandomBits(seed, k++) % below; };
    std::vector<CacheId> ids;
    std::vector<CacheId> leases;
    for (int i = 0; i < 8; ++i) ids.push_back(driven.Add(5 + draw(90), i > 5 ? ids[draw(2)] : kNoCacheId));
    for (int i = 0; i < 400; ++i) {
      const CacheId id = ids[draw(ids.size())];
      switch (draw(6)) {
        case 0: driven.cache.EndAsk(id, driven.now_us); break;
        case 1: driven.cache.Prefetch(id, driven.now_us); break;
        case 2:
          if (leases.empty()) break;
          std::swap(leases[draw(leases.size())], leases.back());
          driven.cache.EndLease(leases.back(), driven.now_us);
          leases.pop_back();
          break;
        default:
          if (driven.Lease(id)) leases.push_back(id);
      }
      driven.now_us += static_cast<int64_t>(draw(static_cast<uint64_t>(kSecond)));
      driven.Settle();
    }
  }
}

}  // namespace
}  // namespace df
