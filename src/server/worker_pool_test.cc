#include "server/worker_pool.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdlib>
#include <fstream>
#include <system_error>

namespace df::server {
namespace {

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // those need address space of their own
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
  EXPECT_EXIT(ExitHavingAskedForTooManyThreads(), ::testing::ExitedWithCode(42), "");
}
#endif

}  // namespace
}  // namespace df::server
