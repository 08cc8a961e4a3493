// Any one allocation of the engine thread may fail: some requests end for want of memory, each once; the engine goes
// on, has all its blocks back, and answers as before. Every allocation fails here in its turn.
#include <atomic>
#include <cstdlib>
#include <new>

#include "engine/engine_fixture.h"

namespace {

thread_local bool is_client = false;       // the test's own thread: nothing of its fails
std::atomic<int64_t> n_until_failure{-1};  // allocations of other threads; negative = none fails

void* Allocate(size_t n_bytes, size_t alignment) {
  if (!is_client && n_until_failure.load() >= 0 && n_until_failure.fetch_sub(1) == 0) throw std::bad_alloc();
  const size_t rounded = (std::max<size_t>(n_bytes, 1) + alignment - 1) / alignment * alignment;
  void* memory = std::aligned_alloc(alignment, rounded);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(size_t n_bytes) { return Allocate(n_bytes, __STDCPP_DEFAULT_NEW_ALIGNMENT__); }
void* operator new(size_t n_bytes, std::align_val_t alignment) {
  return Allocate(n_bytes, static_cast<size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t /*n_bytes*/) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t /*alignment*/) noexcept { std::free(memory); }
void operator delete(void* memory, size_t /*n_bytes*/, std::align_val_t /*alignment*/) noexcept { std::free(memory); }

namespace df {
namespace {

using testing::Await;
using testing::Outcome;

class EngineWithoutMemory : public EngineFixture {
 protected:
  void SetUp() override { is_client = true; }

  // What a busy engine meets: the base, a delta, an adapter, log-probabilities, a cancellation, a deadline, preemption.
  static std::vector<GenerationRequest> Requests(int64_t round) {
    std::vector<GenerationRequest> requests;
    for (const std::string name : {"base", "delta1", "adapter", "delta2", "base"}) {
      GenerationRequest request =
          Request(std::to_string(requests.size()) + "-" + std::to_string(round), name, 15 + 3 * requests.size());
      request.cache_salt = std::to_string(round % 5);
      requests.push_back(std::move(request));
    }
    requests[0].params.logprobs = 3;
    requests[1].params.prompt_logprobs = 2;
    requests[2].timeout_ms = 3'600'000;
    return requests;
  }
};

TEST_F(EngineWithoutMemory, EveryAllocationMayFail) {
  const auto engine = MakeEngine({.n_threads = 1,
                                  .max_num_seqs = 4,
                                  .max_num_batched_tokens = 32,
                                  .max_model_len = 64,
                                  .kv_cache_bytes = KvBytes(128, DType::kBf16)});
  const std::vector<int32_t> expected = Answer(*engine, Request("first", "delta1", 20)).tokens;
  ASSERT_EQ(expected.size(), 20u);
  size_t n_failed = 0;
  int64_t n = 0;
  for (bool was_reached = true; was_reached; ++n) {
    ASSERT_LT(n, 100'000);
    const std::vector<GenerationRequest> requests = Requests(n);
    n_until_failure = n;
    for (const GenerationRequest& request : requests) DF_ASSERT_OK(engine->Submit(request));
    engine->Cancel(requests[3].id);
    engine->Wake();
    for (const GenerationRequest& request : requests) {
      const Outcome outcome = Await(*request.events);
      ASSERT_TRUE(outcome.finish.has_value());
      if (*outcome.finish != FinishReason::kError) continue;
      EXPECT_EQ(outcome.status.code(), StatusCode::kResourceExhausted) << outcome.status.message();
      ++n_failed;
    }
    was_reached = n_until_failure.exchange(-1) < 0;
    const EngineStats stats = testing::IdleStats(*engine);
    ASSERT_EQ(stats.kv_blocks_used, 0u) << "after the failure of allocation " << n;
    ASSERT_EQ(stats.n_running + stats.n_waiting, 0u);
    if (n % 10 == 0) {
      ASSERT_EQ(Answer(*engine, Request("again", "delta1", 20)).tokens, expected) << "after allocation " << n;
    }
  }
  EXPECT_GT(n_failed, 100u);
  EXPECT_GT(n, 100);
}

}  // namespace
}  // namespace df
