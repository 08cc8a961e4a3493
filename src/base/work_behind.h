// Work that is done in order on a thread of its own, behind whoever orders it: what was computed is written while the
// next is computed.
#ifndef DELTAFOLD_BASE_WORK_BEHIND_H_
#define DELTAFOLD_BASE_WORK_BEHIND_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "base/status.h"

namespace df {

// Called from one thread.
class WorkBehind {
 public:
  // Waiting and running orders hold at most `max_bytes`, or one of them more. Without a thread, where none is to be
  // had, orders are done at once.
  explicit WorkBehind(uint64_t max_bytes);
  ~WorkBehind();  // as Finish
  WorkBehind(const WorkBehind&) = delete;
  WorkBehind& operator=(const WorkBehind&) = delete;

  // Orders `work`, which holds `bytes`; waits until there is room for it. After the first failure, which this and all
  // further calls give back, nothing more is done.
  Status Do(uint64_t bytes, std::function<Status()> work);
  // Waits until all is done.
  Status Finish();

 private:
  struct Order {
    uint64_t bytes = 0;
    std::function<Status()> work;
  };
  void Run();

  const uint64_t max_bytes_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Order> waiting_;
  uint64_t held_bytes_ = 0;  // of those waiting and the one that runs
  bool stopping_ = false;
  Status failure_ = Status::Ok();
  std::thread thread_;
};

}  // namespace df

#endif  // DELTAFOLD_BASE_WORK_BEHIND_H_
