// How long a call on a KernelContext took, on a machine that others use too.
//
// The caller of a parallel kernel works or spins until the last part is done, so its own CPU time is the length of the
// call with 1 thread as with many, less the time in which another process had its core: what wall time would show on an
// idle machine. Should the caller sleep in between, its clock stands still; then the whole process's CPU time, divided
// by the threads, is the larger of the two and counts. (Sums over threads would hide a thread that waits for another.)
#ifndef DELTAFOLD_TOOLS_CPU_TIMER_H_
#define DELTAFOLD_TOOLS_CPU_TIMER_H_

#include <cstddef>

namespace df::tools {

// Runs from its construction on, for the thread that made it.
class CpuTimer {
 public:
  explicit CpuTimer(size_t n_threads);
  double Seconds() const;

 private:
  size_t n_threads_;
  double thread_start_s_, process_start_s_;
};

}  // namespace df::tools

#endif  // DELTAFOLD_TOOLS_CPU_TIMER_H_
