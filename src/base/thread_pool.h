// A fixed set of threads for kernels: one ParallelFor at a time, the caller works too and does the parts of workers
// that did not get a CPU in time. Work is cut for the threads asked for; no more threads run than there are CPUs.
#ifndef DELTAFOLD_BASE_THREAD_POOL_H_
#define DELTAFOLD_BASE_THREAD_POOL_H_

#include <sched.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "base/numa.h"

namespace df {

// Owned by one caller thread; ParallelFor must not be called from two threads at once or from inside a task.
class ThreadPool {
 public:
  // `n_threads` >= 1 counts the caller: 1 starts no thread at all. No more are started than UsableCpus(), fewer where
  // the system gives fewer (limits of memory or processes): parts then outnumber threads, which take one after another.
  // Where there are several memory nodes, each worker stays on the node of its part; always within the process's mask.
  explicit ThreadPool(size_t n_threads, std::vector<NumaNode> nodes = UsableNumaNodes());
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  size_t n_threads() const { return slots_.size(); }
  const std::vector<NumaNode>& nodes() const { return nodes_; }  // empty on a machine with one

  // Confines the calling thread to the node of the first part, for good: for a thread that does nothing but call.
  void BindCaller() const;

  // Calls body(begin, end, thread) once for each of at most n_threads() contiguous parts of [0, n), sizes differing by
  // at most `grain`; parts are multiples of `grain` but for the last. Static: a part depends on (n, grain, n_threads)
  // only, though on a busy machine a thread runs parts of others: `thread` numbers the part. Returns when all are done.
  // No allocation. A grain is what is worth a thread (GrainFor): n <= grain stays on the caller and wakes nobody.
  template <typename Body>
  void ParallelFor(size_t n, size_t grain, const Body& body) {
    Run(
        n, grain,
        [](const void* b, size_t begin, size_t end, size_t thread) {
          (*static_cast<const Body*>(b))(begin, end, thread);
        },
        &body);
  }

 private:
  using Part = void (*)(const void* body, size_t begin, size_t end, size_t thread);

  void Run(size_t n, size_t grain, Part part, const void* body);
  void Work(size_t worker);
  void RunPart(size_t thread);
  // Runs the part of `thread` unless it was taken before.
  void TakePart(size_t thread);
  void WakeParked();
  void KeepWorkersOff(int caller_cpu);

  // Whether a part of the current call waits for somebody to take it. A cache line each: they are polled.
  struct alignas(64) Slot {
    std::atomic<bool> open{false};
  };

  const std::vector<NumaNode> nodes_;
  cpu_set_t usable_;  // to whoever made the pool
  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<uint64_t> epoch_{0};    // counts ParallelFor calls; a change starts the workers
  std::atomic<size_t> n_parked_{0};   // workers that wait, or are about to
  int caller_cpu_ = -1;               // which workers keep off
  std::atomic<size_t> n_running_{0};  // parts of the current call, the caller's own apart, that are not finished
  std::vector<Slot> slots_;           // of the workers; slots_[0] is the caller's and unused
  std::atomic<bool> stopping_{false};
  size_t n_ = 0;
  size_t grain_ = 1;
  Part part_ = nullptr;
  const void* body_ = nullptr;
};

// Grain of a loop whose items take `bytes_per_item` of reading and writing memory, or as long as that: at 10 GB/s a
// part of 128 KB takes 13 us, well above a futex wake (about 5 us, see kSpinTime).
inline constexpr size_t kMinPartBytes = size_t{128} << 10;
constexpr size_t GrainFor(size_t bytes_per_item) {
  return bytes_per_item == 0 || bytes_per_item >= kMinPartBytes ? 1 : kMinPartBytes / bytes_per_item;
}

// Hardware threads this process may use (its affinity mask and, within a container, its CPU quota).
size_t UsableCpus();

}  // namespace df

#endif  // DELTAFOLD_BASE_THREAD_POOL_H_
