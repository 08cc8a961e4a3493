// For tests: engines over the tiny family, loaded once a suite.
#ifndef DELTAFOLD_ENGINE_ENGINE_FIXTURE_H_
#define DELTAFOLD_ENGINE_ENGINE_FIXTURE_H_

#include <gtest/gtest.h>

#include <memory>
#include <string>

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
  static testing::Outcome Answer(Engine& engine, const GenerationRequest& request) {
    DF_EXPECT_OK(engine.Submit(request));
    return testing::Await(*request.events);
  }

  static inline testing::TinyWeights weights_;
};

}  // namespace df

#endif  // DELTAFOLD_ENGINE_ENGINE_FIXTURE_H_
