#include "engine/inbox.h"

#include <utility>

namespace df {

Status Inbox::Submit(Submission submission) {
  {
    const std::scoped_lock lock(mutex_);
    if (stopping_) return Unavailable("the engine is shutting down");
    if (news_.submitted.size() + n_waiting_ >= max_queued_requests_) {
      return ResourceExhausted("the queue is full: " + std::to_string(max_queued_requests_) +
                               " requests are waiting; try again later");
    }
    news_.submitted.push_back(std::move(submission));
  }
  arrived_.notify_one();
  return Status::Ok();
}

void Inbox::Cancel(const std::string& id) {
  {
    const std::scoped_lock lock(mutex_);
    if (stopping_) return;
    news_.cancelled.push_back(id);
  }
  arrived_.notify_one();
}

void Inbox::Stop() {
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
  }
  arrived_.notify_one();
}

bool Inbox::Take(bool busy, News& news) {
  std::unique_lock lock(mutex_);
  if (!busy) {
    arrived_.wait(lock, [&] { return stopping_ || !news_.submitted.empty() || !news_.cancelled.empty(); });
  }
  n_waiting_ += news_.submitted.size();
  news = std::exchange(news_, {});
  return !stopping_;
}

void Inbox::SetWaiting(size_t n_waiting) {
  const std::scoped_lock lock(mutex_);
  n_waiting_ = n_waiting;
}

size_t Inbox::n_waiting() const {
  const std::scoped_lock lock(mutex_);
  return n_waiting_ + news_.submitted.size();
}

}  // namespace df
