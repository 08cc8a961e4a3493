// For tests: a residency cache whose loads and drops are done by hand, under a clock moved by hand.
#ifndef DELTAFOLD_STORE_RESIDENCY_FIXTURE_H_
#define DELTAFOLD_STORE_RESIDENCY_FIXTURE_H_

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "store/residency_cache.h"

namespace df {

inline constexpr int64_t kSecond = 1'000'000;

// A cache whose loads and drops are done at once unless a test holds them back.
struct Driven {
  explicit Driven(CacheOptions options) : cache(options) {}

  CacheId Add(uint64_t bytes, CacheId parent = kNoCacheId) { return cache.Add({.bytes = bytes, .parent = parent}); }
  // Drops and loads until there is nothing to do; the ids loaded, in order.
  std::vector<CacheId> Settle() {
    std::vector<CacheId> loaded;
    for (;;) {
      EXPECT_EQ(cache.CheckInvariants(), "");
      if (const auto id = cache.NextDrop(now_us)) {
        cache.Dropped(*id, now_us);
      } else if (const auto load = cache.NextLoad(now_us)) {
        cache.LoadDone(*load, cache.View(*load, now_us).reserved_bytes, now_us);
        loaded.push_back(*load);
      } else {
        return loaded;
      }
    }
  }
  bool Lease(CacheId id) { return cache.TryLease(id, now_us).granted; }
  void UseOnce(CacheId id) {
    if (!Lease(id)) {
      Settle();
      ASSERT_TRUE(Lease(id));
    }
    cache.EndLease(id, now_us);
  }
  void Fail(CacheId id, Status cause) {
    ASSERT_EQ(cache.NextLoad(now_us), id);
    cache.LoadFailed(id, std::move(cause), now_us);
  }
  ResidencyState State(CacheId id) const { return cache.View(id, now_us).state; }
  bool IsIn(CacheId id) const { return State(id) == ResidencyState::kResident; }

  ResidencyCache cache;
  int64_t now_us = kSecond;
};

inline CacheOptions Budget(uint64_t bytes) {
  CacheOptions options;
  options.budget_bytes = bytes;
  return options;
}

}  // namespace df

#endif  // DELTAFOLD_STORE_RESIDENCY_FIXTURE_H_
