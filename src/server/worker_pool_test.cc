#include "server/worker_pool.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <system_error>

#include "testing/process_memory.h"

namespace df::server {
namespace {

// Leaves room for the stacks of some threads, but not of a thousand.
[[noreturn]] void ExitHavingAskedForTooManyThreads() {
  if (!df::testing::LimitAddressSpace(size_t{100} << 20)) std::_Exit(99);
  try {
    const WorkerPool pool(1000, 1);
  } catch (const std::system_error&) {
    std::_Exit(42);
  }
  std::_Exit(1);
}

TEST(WorkerPool, EndsTheThreadsItHasWhereItCannotHaveAll) {
  if (df::testing::kSanitized) GTEST_SKIP() << "a sanitizer needs address space of its own";
  EXPECT_EXIT(ExitHavingAskedForTooManyThreads(), ::testing::ExitedWithCode(42), "");
}

}  // namespace
}  // namespace df::server
