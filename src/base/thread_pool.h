// A fixed set of threads for kernels: one ParallelFor at a time, the caller works too and does the parts of workers
// that did not get a CPU in time.
#ifndef DELTAFOLD_BASE_THREAD_POOL_H_
#define DELTAFOLD_BASE_THREAD_POOL_H_

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace df {

// Owned by one caller thread; ParallelFor must not be called from two threads at once or from inside a task.
class ThreadPool {
 public:
  // `n_threads` >= 1 counts the caller: 1 starts no thread at all. Where the system gives fewer (limits of memory or
  // processes), the caller does the work of those that are missing.
  explicit ThreadPool(size_t n_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  size_t n_threads() const { return slots_.size(); }

  // Calls body(begin, end, thread) once for each of at most n_threads() contiguous parts of [0, n), sizes differing by
  // at most `grain`; parts are multiples of `grain` but for the last. Static: a part depends on (n, grain, n_threads)
  // only, though on a busy machine the caller runs parts of others: `thread` numbers the part. Returns when all are
  // done. No allocation.
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
  void Work(size_t thread);
  void RunPart(size_t thread);
  // Runs the part of `thread` unless it was taken before.
  void TakePart(size_t thread);

  // Whether a part of the current call waits for somebody to take it. A cache line each: they are polled.
  struct alignas(64) Slot {
    std::atomic<bool> open{false};
  };

  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<uint64_t> epoch_{0};    // counts ParallelFor calls; a change starts the workers
  std::atomic<size_t> n_running_{0};  // parts of the current call, the caller's own apart, that are not finished
  std::vector<Slot> slots_;           // of the workers; slots_[0] is the caller's and unused
  std::atomic<bool> stopping_{false};
  size_t n_ = 0;
  size_t grain_ = 1;
  Part part_ = nullptr;
  const void* body_ = nullptr;
};

// Hardware threads this process may use (its affinity mask and, within a container, its CPU quota).
size_t UsableCpus();

}  // namespace df

#endif  // DELTAFOLD_BASE_THREAD_POOL_H_
