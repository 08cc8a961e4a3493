#include "engine/request.h"

#include <condition_variable>
#include <utility>

namespace df {

std::string_view FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop: return "stop";
    case FinishReason::kLength: return "length";
    case FinishReason::kCancelled: return "abort";
    case FinishReason::kError: return "error";
  }
  return "error";
}

struct EventQueue::State {
  std::mutex mutex;
  std::condition_variable arrived;
  std::vector<TokenEvent> events;
  std::function<void()> wake;
};

EventQueue::EventQueue() : state_(std::make_shared<State>()) {}

void EventQueue::SetWaker(std::function<void()> wake) {
  const std::scoped_lock lock(state_->mutex);
  state_->wake = std::move(wake);
}

std::vector<TokenEvent> EventQueue::TakeAll() {
  const std::scoped_lock lock(state_->mutex);
  return std::exchange(state_->events, {});
}

std::vector<TokenEvent> EventQueue::TakeAllBlocking() {
  std::unique_lock lock(state_->mutex);
  state_->arrived.wait(lock, [&] { return !state_->events.empty(); });
  return std::exchange(state_->events, {});
}

void EventQueue::Push(TokenEvent event) {
  // The waker runs under the lock: a client that cleared it knows that it is not running any more.
  const std::scoped_lock lock(state_->mutex);
  state_->events.push_back(std::move(event));
  state_->arrived.notify_one();
  if (state_->wake) state_->wake();
}

}  // namespace df
