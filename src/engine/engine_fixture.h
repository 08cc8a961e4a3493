// For tests: engines over the tiny family, loaded once a suite.
#ifndef DELTAFOLD_ENGINE_ENGINE_FIXTURE_H_
#define DELTAFOLD_ENGINE_ENGINE_FIXTURE_H_

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "engine/engine.h"
#include "engine/kv_cache.h"
#include "model/kv_pool.h"
#include "testing/engine_client.h"
#include "testing/tiny_weights.h"

namespace df {

class EngineFixture : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { weights_ = testing::LoadTinyWeights(); }
  static void TearDownTestSuite() { weights_ = {}; }

  static std::unique_ptr<Engine> MakeEngine(EngineOptions options) {
    return testing::ValueOrDie(Engine::Create(weights_.base, options));
  }
  // The pool that holds `n_tokens`.
  static uint64_t KvBytes(size_t n_tokens, DType dtype) {
    return KvBlocksFor(n_tokens) * KvPool::BlockBytes(weights_.base->config, dtype);
  }
  // Greedy, 20 tokens.
  static GenerationRequest Request(const std::string& id, const std::string& variant, size_t n_prompt) {
    GenerationRequest request = testing::TinyRequest(weights_, id, variant, n_prompt);
    request.params.max_tokens = 20;
    return request;
  }
  // As often as a test likes: every time is a request of its own.
  static testing::Outcome Answer(Engine& engine, GenerationRequest request) {
    request.events = std::make_shared<EventQueue>();
    DF_EXPECT_OK(engine.Submit(request));
    return testing::Await(*request.events);
  }

  // CPU time that the process takes in 200 ms in which the test does nothing.
  static int64_t CpuMsOfAFifthOfASecond() {
    const auto cpu_ms = [] {
      rusage usage = {};
      getrusage(RUSAGE_SELF, &usage);
      return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000 +
             (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1000;
    };
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // workers spin for a moment before they park
    const int64_t before_ms = cpu_ms();
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    return cpu_ms() - before_ms;
  }

  static inline testing::TinyWeights weights_;
};

}  // namespace df

#endif  // DELTAFOLD_ENGINE_ENGINE_FIXTURE_H_
