#include "store/resident_set.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <system_error>

#include "testing/process_memory.h"

namespace df {
namespace {

// Leaves room for the stacks of some threads, but not of a thousand.
[[noreturn]] void ExitHavingAskedForTooManyThreads() {
  if (!testing::LimitAddressSpace(size_t{100} << 20)) std::_Exit(99);
  CacheOptions cache;
  cache.max_loads = 1000;
  try {
    static_cast<void>(ResidentSet::Create(nullptr, {.cache = cache}));
  } catch (const std::system_error&) {
    std::_Exit(42);
  }
  std::_Exit(1);
}

TEST(ResidentSet, EndsTheThreadsItHasWhereItCannotHaveAll) {
  if (testing::kSanitized) GTEST_SKIP() << "a sanitizer needs address space of its own";
  EXPECT_EXIT(ExitHavingAskedForTooManyThreads(), ::testing::ExitedWithCode(42), "");
}

}  // namespace
}  // namespace df
