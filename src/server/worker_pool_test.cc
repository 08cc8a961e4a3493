#include "server/worker_pool.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdlib>
#include <fstream>
#include <system_error>

#include "testing/process_memory.h"

namespace df::server {
namespace {

// Leaves room for the stacks of some threads, but not of a thousand.
[[noreturn]] void ExitHavingAskedForTooManyThreads() {
  size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlim_t bytes = (rlim_t{pages} << 12) + (rlim_t{100} << 20);
  const rlimit limit = {.rlim_cur = bytes, .rlim_max = bytes};
  if (setrlimit(RLIMIT_AS, &limit) != 0) std::_Exit(99);
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
