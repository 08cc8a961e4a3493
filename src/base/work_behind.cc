#include "base/work_behind.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "base/quiet_thread.h"

namespace df {

WorkBehind::WorkBehind(uint64_t max_bytes) : max_bytes_(max_bytes) {
  try {
    thread_ = StartQuietThread([this] { Run(); });
  } catch (const std::system_error&) {  // none to be had
  }
}

WorkBehind::~WorkBehind() {
  if (!thread_.joinable()) return;
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

Status WorkBehind::Do(uint64_t bytes, std::function<Status()> work) {
  if (!thread_.joinable()) {
    if (failure_.ok()) failure_ = work();
    return failure_;
  }
  bytes = std::max<uint64_t>(bytes, 1);  // what runs is seen
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return held_bytes_ == 0 || held_bytes_ + bytes <= max_bytes_; });
    if (!failure_.ok()) return failure_;
    held_bytes_ += bytes;
    waiting_.push_back({bytes, std::move(work)});
  }
  changed_.notify_all();
  return Status::Ok();
}

Status WorkBehind::Finish() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return held_bytes_ == 0; });
  return failure_;
}

void WorkBehind::Run() {
  for (;;) {
    Order order;
    bool has_failed = false;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stopping_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      order = std::move(waiting_.front());
      waiting_.pop_front();
      has_failed = !failure_.ok();
    }
    Status status = has_failed ? Status::Ok() : order.work();
    order.work = nullptr;  // what it held is freed
    {
      const std::scoped_lock lock(mutex_);
      if (!status.ok()) failure_ = std::move(status);
      held_bytes_ -= order.bytes;
    }
    changed_.notify_all();
  }
}

}  // namespace df
