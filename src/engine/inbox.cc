#include "engine/inbox.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace df {
namespace {

constexpr int64_t kLongestWaitUs = 3'600'000'000;  // no sum overflows

}  // namespace

Status Inbox::Submit(Submission submission) {
  const GenerationRequest& request = submission.request;
  submission.place = places_.TryTake(request.variant.get());
  if (!submission.place.is_taken()) {
    const std::string whose = request.variant == nullptr ? "the base" : "\"" + request.variant_name + "\"";
    return ResourceExhausted("the queue of " + whose + " is full: " + std::to_string(places_.most_each()) +
                             " requests are waiting for it; try again later");
  }
  {
    const std::scoped_lock lock(mutex_);
    if (stopping_) return Unavailable("the engine is shutting down");
    const std::shared_ptr<EventQueue> events = request.events;
    news_.submitted.push_back(std::move(submission));
    news_.submitted.back().promise = EndPromise(events);
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

void Inbox::Wake() {
  {
    const std::scoped_lock lock(mutex_);
    news_.woken = true;
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

bool Inbox::Take(int64_t patience_us, News& news) {
  std::unique_lock lock(mutex_);
  const auto has_news = [&] {
    return stopping_ || news_.woken || !news_.submitted.empty() || !news_.cancelled.empty();
  };
  if (patience_us > 0)
    arrived_.wait_for(lock, std::chrono::microseconds(std::min(patience_us, kLongestWaitUs)), has_news);
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
