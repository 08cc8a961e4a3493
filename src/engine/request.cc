#include "engine/request.h"

#include <condition_variable>
#include <new>
#include <utility>

#include "base/clock.h"

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
  bool has_ended = false;      // nothing comes any more
  bool lacked_memory = false;  // the end is none of `events`, and was not taken yet

  std::vector<TokenEvent> Take() {
    if (lacked_memory) {
      TokenEvent end;
      end.finish = FinishReason::kError;
      end.status = ResourceExhausted("no memory for this request");
      end.time_us = SteadyClock().NowUs();
      events.push_back(std::move(end));
      lacked_memory = false;
    }
    return std::exchange(events, {});
  }
  void End() {
    has_ended = lacked_memory = true;
    Tell();
  }
  // The waker runs under the lock: a client that cleared it knows that it is not running any more. One that fails for
  // want of memory is none: clients look from time to time by themselves.
  void Tell() {
    arrived.notify_one();
    try {
      if (wake) wake();
    } catch (const std::bad_alloc&) {
    }
  }
};

EventQueue::EventQueue() : state_(std::make_shared<State>()) {}

void EventQueue::SetWaker(std::function<void()> wake) {
  const std::scoped_lock lock(state_->mutex);
  state_->wake = std::move(wake);
}

std::vector<TokenEvent> EventQueue::TakeAll() {
  const std::scoped_lock lock(state_->mutex);
  return state_->Take();
}

std::vector<TokenEvent> EventQueue::TakeAllBlocking() {
  std::unique_lock lock(state_->mutex);
  state_->arrived.wait(lock, [&] { return !state_->events.empty() || state_->lacked_memory; });
  return state_->Take();
}

bool EventQueue::Push(TokenEvent event) noexcept {
  const std::scoped_lock lock(state_->mutex);
  if (state_->has_ended) return false;
  try {
    state_->has_ended = event.finish.has_value();
    state_->events.push_back(std::move(event));
  } catch (const std::bad_alloc&) {
    state_->End();
    return false;
  }
  state_->Tell();
  return true;
}

void EventQueue::EndWithoutMemory() noexcept {
  const std::scoped_lock lock(state_->mutex);
  if (!state_->has_ended) state_->End();
}

}  // namespace df
