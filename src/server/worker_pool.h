// Threads for work that would hold up the connections: JSON, templates and tokenising of long prompts.
#ifndef DELTAFOLD_SERVER_WORKER_POOL_H_
#define DELTAFOLD_SERVER_WORKER_POOL_H_

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace df::server {

// Thread-safe. The destructor drops what is queued, waits for what runs.
class WorkerPool {
 public:
  // std::system_error, or std::bad_alloc, when a thread cannot be started: none is left then.
  WorkerPool(size_t n_threads, size_t max_queued);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // False when the queue is full: the job is not taken.
  [[nodiscard]] bool Submit(std::function<void()> job);

 private:
  void Work();
  void End();

  const size_t max_queued_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> jobs_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace df::server

#endif  // DELTAFOLD_SERVER_WORKER_POOL_H_
