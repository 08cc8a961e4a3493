#include "tools/cpu_timer.h"

#include <time.h>

#include <algorithm>

namespace df::tools {
namespace {

double Now(clockid_t clock) {
  timespec now = {};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

CpuTimer::CpuTimer(size_t n_threads)
    : n_threads_(n_threads),
      thread_start_s_(Now(CLOCK_THREAD_CPUTIME_ID)),
      process_start_s_(Now(CLOCK_PROCESS_CPUTIME_ID)) {}

double CpuTimer::Seconds() const {
  const double of_caller = Now(CLOCK_THREAD_CPUTIME_ID) - thread_start_s_;
  const double of_process = Now(CLOCK_PROCESS_CPUTIME_ID) - process_start_s_;
  return std::max(of_caller, of_process / static_cast<double>(n_threads_));
}

}  // namespace df::tools
