#include "server/worker_pool.h"

namespace df::server {

WorkerPool::WorkerPool(size_t n_threads, size_t max_queued) : max_queued_(max_queued) {
  try {
    for (size_t i = 0; i < n_threads; ++i) threads_.emplace_back([this] { Work(); });
  } catch (...) {  // no thread, no memory: those that there are end first
    End();
    throw;
  }
}

WorkerPool::~WorkerPool() { End(); }

void WorkerPool::End() {
  std::deque<std::function<void()>> dropped;  // destroyed outside the lock
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    dropped.swap(jobs_);
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

bool WorkerPool::Submit(std::function<void()> job) {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_ || jobs_.size() >= max_queued_) return false;
    jobs_.push_back(std::move(job));
  }
  wake_.notify_one();
  return true;
}

void WorkerPool::Work() {
  while (true) {
    std::function<void()> job;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
      if (stopping_) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    job();
  }
}

}  // namespace df::server
