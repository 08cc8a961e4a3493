// A client of the engine for tests: waits for the end of a request, and can hold the engine still.
#ifndef DELTAFOLD_TESTING_ENGINE_CLIENT_H_
#define DELTAFOLD_TESTING_ENGINE_CLIENT_H_

#include <gtest/gtest.h>

#include <chrono>
#include <latch>
#include <optional>
#include <thread>
#include <vector>

#include "engine/engine.h"

namespace df::testing {

struct Outcome {
  std::vector<int32_t> tokens;
  std::optional<FinishReason> finish;
  Status status;
};

inline Outcome Await(EventQueue& events) {
  Outcome outcome;
  while (!outcome.finish) {
    for (const TokenEvent& event : events.TakeAllBlocking()) {
      EXPECT_FALSE(outcome.finish) << "an event after the end";
      if (event.token >= 0) outcome.tokens.push_back(event.token);
      outcome.finish = event.finish;
      outcome.status = event.status;
    }
  }
  return outcome;
}

// Holds the engine thread inside its first event for `request`, until released.
class Brake {
 public:
  explicit Brake(const GenerationRequest& request) : events_(request.events) {
    events_->SetWaker([this] {
      if (held_once_) return;
      held_once_ = true;
      holding_.count_down();
      released_.wait();
    });
  }
  ~Brake() {
    Release();
    events_->SetWaker({});
  }

  void AwaitHold() { holding_.wait(); }
  void Release() {
    if (!released_.try_wait()) released_.count_down();
  }

 private:
  std::shared_ptr<EventQueue> events_;
  bool held_once_ = false;  // engine thread
  std::latch holding_{1}, released_{1};
};

// The figures once nothing runs or waits: the last event of a request goes out just before those of its step.
inline EngineStats IdleStats(const Engine& engine) {
  for (int i = 0; i < 2000 && engine.Stats().n_running + engine.Stats().n_waiting > 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return engine.Stats();
}

}  // namespace df::testing

#endif  // DELTAFOLD_TESTING_ENGINE_CLIENT_H_
