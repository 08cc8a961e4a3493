#include "engine/engine.h"

#include <algorithm>
#include <future>
#include <set>
#include <thread>

#include "base/rng.h"
#include "engine/engine_fixture.h"

namespace df {
namespace {

using testing::Await;
using testing::Brake;
using testing::kTinyVocab;
using testing::Outcome;

using EngineTest = EngineFixture;

void ExpectIdle(const Engine& engine) {
  const EngineStats stats = testing::IdleStats(engine);
  EXPECT_EQ(stats.n_running, 0u);
  EXPECT_EQ(stats.n_waiting, 0u);
  EXPECT_EQ(stats.kv_blocks_used, 0u);
}

TEST_F(EngineTest, VariantsDifferFromTheBaseAndFromEachOther) {
  const auto engine = MakeEngine({.n_threads = 1});
  std::set<std::vector<int32_t>> answers;
  for (const std::string name : {"base", "delta1", "delta2", "adapter"}) {
    const GenerationRequest request = Request(name, name, 8);
    DF_EXPECT_OK(engine->Submit(request));
    answers.insert(Await(*request.events).tokens);
  }
  EXPECT_EQ(answers.size(), 4u);
}

TEST_F(EngineTest, TheSameSeedGivesTheSameAnswerAndNoneADifferentOne) {
  const auto engine = MakeEngine({.n_threads = 1});
  const auto answer = [&](std::optional<uint64_t> seed) {
    GenerationRequest request = Request("r", "base", 5);
    request.params.temperature = 1.5;
    request.params.seed = seed;
    request.params.ignore_eos = true;
    DF_EXPECT_OK(engine->Submit(request));
    return Await(*request.events).tokens;
  };
  EXPECT_EQ(answer(7), answer(7));
  EXPECT_NE(answer(7), answer(8));
  EXPECT_NE(answer(std::nullopt), answer(std::nullopt));
}

TEST_F(EngineTest, CountsWhatItsStepsHadToMoveAndCompute) {
  const auto engine = MakeEngine({.n_threads = 1});
  const auto run = [&](const std::string& variant) {
    GenerationRequest request = Request("r", variant, 8);
    request.params.max_tokens = 1;
    DF_EXPECT_OK(engine->Submit(request));
    Await(*request.events);
    return testing::IdleStats(*engine);
  };
  const EngineStats base = run("base");
  EXPECT_EQ(base.steps, 1u);
  EXPECT_GT(base.step_seconds, 0);

  const BaseWeights& weights = *weights_.base;
  double weight_bytes = 0, flops = 0;
  for (const LayerWeights& layer : weights.layers) {
    for (const kernels::LinearWeight& linear : layer.linear) {
      weight_bytes += static_cast<double>(linear.weight.bytes());
      flops += 8 * 2 * static_cast<double>(linear.weight.d_out * linear.weight.d_in);
    }
    // The i-th of 8 tokens sees i + 1: 36 pairs a head.
    flops += 4 * 36 * static_cast<double>(weights.config.n_heads * weights.config.head_dim);
  }
  const kernels::PackedWeight& head = weights.HeadWeight().weight;  // for the last token alone
  weight_bytes += static_cast<double>(head.bytes());
  flops += 2 * static_cast<double>(head.d_out * head.d_in);
  EXPECT_EQ(base.step_flops, flops);
  EXPECT_GT(base.step_bytes, weight_bytes);

  const EngineStats both = run("delta1");
  EXPECT_GT(both.step_bytes - base.step_bytes, base.step_bytes) << "the delta's own bytes come on top";
}

// What the base says to a prompt of 6 tokens, and a token of it that first stands somewhere in the middle.
struct FreeAnswer {
  std::vector<int32_t> tokens;
  int32_t stop = -1;
  std::vector<int32_t> until_stop;
};

FreeAnswer SplitAtAStop(std::vector<int32_t> tokens) {
  const int32_t stop = tokens.at(10);
  const auto first = std::find(tokens.begin(), tokens.end(), stop);
  std::vector<int32_t> until_stop(tokens.begin(), first + 1);
  return {.tokens = std::move(tokens), .stop = stop, .until_stop = std::move(until_stop)};
}

TEST_F(EngineTest, StopsAtAStopTokenAndReportsIt) {
  const auto engine = MakeEngine({.n_threads = 1});
  const FreeAnswer free = SplitAtAStop(Answer(*engine, Request("free", "base", 6)).tokens);

  GenerationRequest stopped = Request("stopped", "base", 6);
  stopped.params.stop_ids = {-5, free.stop, 1 << 30};
  const Outcome outcome = Answer(*engine, stopped);
  EXPECT_EQ(outcome.tokens, free.until_stop);
  EXPECT_EQ(outcome.finish, FinishReason::kStop);

  GenerationRequest eos = Request("eos", "base", 6);
  eos.eos_ids = {free.stop};
  EXPECT_EQ(Answer(*engine, eos).tokens, free.until_stop);

  GenerationRequest ignoring = Request("ignoring", "base", 6);
  ignoring.eos_ids = {free.stop};
  ignoring.params.ignore_eos = true;
  EXPECT_EQ(Answer(*engine, ignoring).tokens, free.tokens);
}

TEST_F(EngineTest, DrawsNoStopTokenBeforeMinTokens) {
  const auto engine = MakeEngine({.n_threads = 1});
  const FreeAnswer free = SplitAtAStop(Answer(*engine, Request("free", "base", 6)).tokens);
  const size_t n_until = free.until_stop.size();

  GenerationRequest request = Request("r", "base", 6);
  request.eos_ids = {free.stop};
  request.params.min_tokens = n_until - 1;  // reached just before it: nothing changes
  EXPECT_EQ(Answer(*engine, request).tokens, free.until_stop);

  request.params.min_tokens = 20;
  for (const bool as_eos : {true, false}) {
    request.eos_ids = as_eos ? std::vector{free.stop} : std::vector<int32_t>{};
    request.params.stop_ids = as_eos ? std::vector<int32_t>{} : std::vector{free.stop};
    const Outcome outcome = Answer(*engine, request);
    EXPECT_EQ(outcome.finish, FinishReason::kLength);
    ASSERT_EQ(outcome.tokens.size(), 20u);
    EXPECT_EQ(std::count(outcome.tokens.begin(), outcome.tokens.end(), free.stop), 0);
    EXPECT_TRUE(std::equal(free.until_stop.begin(), free.until_stop.end() - 1, outcome.tokens.begin()));
  }

  request.params.stop_ids.clear();
  request.eos_ids = {free.stop};
  request.params.ignore_eos = true;  // then it is a token as any other
  EXPECT_EQ(Answer(*engine, request).tokens, free.tokens);
}

TEST_F(EngineTest, DrawsWhatMinTokensLeaves) {
  const auto engine = MakeEngine({.n_threads = 1});
  GenerationRequest request = Request("r", "delta1", 6);
  request.params.temperature = 1.0;
  request.params.min_tokens = 20;
  for (int32_t token = 0; token < static_cast<int32_t>(kTinyVocab); ++token) {
    if (token != 5 && token != 9) request.params.stop_ids.push_back(token);
  }
  const std::vector<int32_t> tokens = Answer(*engine, request).tokens;
  EXPECT_EQ(tokens.size(), 20u);
  EXPECT_TRUE(std::all_of(tokens.begin(), tokens.end(), [](int32_t token) { return token == 5 || token == 9; }));
  request.eos_ids = {5, 9};
  const Status refused = engine->Submit(request);
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(refused.message().find("min_tokens"), std::string::npos);
}

TEST_F(EngineTest, FillsTheContextToItsLastToken) {
  const auto engine = MakeEngine({.n_threads = 1, .max_model_len = 32});
  for (const size_t n_prompt : {30u, 31u}) {
    GenerationRequest request = Request("r", "base", n_prompt);
    DF_EXPECT_OK(engine->Submit(request));
    const Outcome outcome = Await(*request.events);
    EXPECT_EQ(outcome.tokens.size(), 32 - n_prompt);
    EXPECT_EQ(outcome.finish, FinishReason::kLength);
  }
  for (const size_t n_prompt : {32u, 33u, 1000u}) {
    const Status refused = engine->Submit(Request("r", "base", n_prompt));
    EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
    EXPECT_TRUE(IsContextLengthExceeded(refused)) << refused.message();
    EXPECT_NE(refused.message().find(std::to_string(n_prompt)), std::string::npos);
    EXPECT_NE(refused.message().find("32"), std::string::npos);
  }
  ExpectIdle(*engine);
}

TEST_F(EngineTest, GoesOnToTheEndOfTheContextWithoutMaxTokens) {
  const auto engine = MakeEngine({.n_threads = 1, .max_model_len = 64});
  GenerationRequest request = Request("r", "delta1", 10);
  request.params.max_tokens.reset();
  DF_EXPECT_OK(engine->Submit(request));
  EXPECT_EQ(Await(*request.events).tokens.size(), 54u);
}

TEST_F(EngineTest, RefusesWhatItCannotRunNamingIt) {
  const auto engine = MakeEngine({.n_threads = 1});
  const auto refusal = [&](void (*spoil)(GenerationRequest&)) {
    GenerationRequest request = Request("r", "base", 4);
    spoil(request);
    const Status status = engine->Submit(request);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_FALSE(IsContextLengthExceeded(status));
    return status.message();
  };
  EXPECT_NE(refusal([](GenerationRequest& r) { r.prompt.clear(); }).find("prompt"), std::string::npos);
  EXPECT_NE(refusal([](GenerationRequest& r) { r.prompt[2] = kTinyVocab; }).find("260"), std::string::npos);
  EXPECT_NE(refusal([](GenerationRequest& r) { r.prompt[2] = -1; }).find("-1"), std::string::npos);
  EXPECT_NE(refusal([](GenerationRequest& r) { r.params.min_tokens = 21; }).find("min_tokens"), std::string::npos);
  EXPECT_NE(refusal([](GenerationRequest& r) { r.params.temperature = -1; }).find("temperature"), std::string::npos);
  EXPECT_NE(refusal([](GenerationRequest& r) { r.params.temperature = NAN; }).find("temperature"), std::string::npos);
  EXPECT_NE(refusal([](GenerationRequest& r) { r.params.top_p = 0; }).find("top_p"), std::string::npos);
  EXPECT_NE(refusal([](GenerationRequest& r) { r.params.top_p = 1.5; }).find("top_p"), std::string::npos);
  EXPECT_NE(refusal([](GenerationRequest& r) { r.params.top_k = -2; }).find("top_k"), std::string::npos);
}

TEST_F(EngineTest, BrokenWeightsEndTheirOwnRequestsAlone) {
  const auto engine = MakeEngine({.n_threads = 2});
  const GenerationRequest before = Request("before", "delta1", 9);
  DF_EXPECT_OK(engine->Submit(before));
  const std::vector<int32_t> expected = Await(*before.events).tokens;

  const GenerationRequest sound = Request("sound", "delta1", 9);
  const GenerationRequest broken = Request("broken", "broken", 9);
  DF_EXPECT_OK(engine->Submit(broken));
  DF_EXPECT_OK(engine->Submit(sound));
  const Outcome outcome = Await(*broken.events);
  EXPECT_EQ(outcome.finish, FinishReason::kError);
  EXPECT_EQ(outcome.status.code(), StatusCode::kInternal);
  EXPECT_NE(outcome.status.message().find("non-finite logits"), std::string::npos);
  EXPECT_TRUE(outcome.tokens.empty());
  EXPECT_EQ(Await(*sound.events).tokens, expected);
  ExpectIdle(*engine);
}

TEST_F(EngineTest, CancelsInQueueAndWhileDecoding) {
  const auto engine = MakeEngine({.n_threads = 1, .max_num_seqs = 1});
  GenerationRequest running = Request("running", "base", 4);
  running.params.max_tokens.reset();
  running.params.ignore_eos = true;
  Brake brake(running);
  DF_EXPECT_OK(engine->Submit(running));
  brake.AwaitHold();
  const GenerationRequest queued = Request("queued", "delta1", 4);
  DF_EXPECT_OK(engine->Submit(queued));
  engine->Cancel("queued");
  engine->Cancel("unknown");
  engine->Cancel("running");
  brake.Release();
  const Outcome of_queued = Await(*queued.events);
  EXPECT_EQ(of_queued.finish, FinishReason::kCancelled);
  EXPECT_EQ(of_queued.status.code(), StatusCode::kCancelled);
  EXPECT_TRUE(of_queued.tokens.empty());
  const Outcome of_running = Await(*running.events);
  EXPECT_EQ(of_running.finish, FinishReason::kCancelled);
  EXPECT_EQ(of_running.tokens.size(), 1u) << "a cancelled sequence ends within one step";
  ExpectIdle(*engine);
}

TEST_F(EngineTest, CancelsInTheMiddleOfAPrefill) {
  const auto engine = MakeEngine({.n_threads = 1, .max_num_seqs = 2, .max_num_batched_tokens = 2});
  GenerationRequest other = Request("other", "base", 1);
  other.params.max_tokens = 2;
  Brake brake(other);
  const GenerationRequest prefilling = Request("prefilling", "adapter", 200);
  DF_EXPECT_OK(engine->Submit(other));
  DF_EXPECT_OK(engine->Submit(prefilling));
  brake.AwaitHold();
  engine->Cancel("prefilling");
  brake.Release();
  EXPECT_EQ(Await(*prefilling.events).finish, FinishReason::kCancelled);
  EXPECT_EQ(Await(*other.events).tokens.size(), 2u);
  ExpectIdle(*engine);
}

TEST_F(EngineTest, RefusesMoreThanTheQueueOfAVariantHoldsAndNobodyOfAnother) {
  const auto engine = MakeEngine({.n_threads = 1, .max_num_seqs = 1, .max_queued_requests = 2});
  GenerationRequest running = Request("running", "base", 4);
  Brake brake(running);
  DF_EXPECT_OK(engine->Submit(running));
  brake.AwaitHold();
  std::vector<GenerationRequest> waiting;
  for (const char* name : {"base", "delta2"}) {
    for (int i = 0; i < 2; ++i) waiting.push_back(Request(std::string(name) + std::to_string(i), name, 4));
  }
  GenerationRequest more = Request("more", "delta2", 4);
  waiting[2].variant = waiting[3].variant = more.variant;  // one generation, as the store gives out
  for (const GenerationRequest& request : waiting) DF_EXPECT_OK(engine->Submit(request));
  const Status refused = engine->Submit(more);
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(refused.message().find("the queue of \"delta2\" is full: 2 requests"), std::string::npos);
  EXPECT_NE(engine->Submit(Request("more", "base", 4)).message().find("the queue of the base"), std::string::npos);
  EXPECT_EQ(engine->Stats().n_waiting, 4u);
  brake.Release();
  EXPECT_EQ(Await(*running.events).tokens.size(), 20u);
  for (const GenerationRequest& request : waiting) EXPECT_EQ(Await(*request.events).tokens.size(), 20u);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(Answer(*engine, Request("later", "delta2", 4)).tokens.size(), 20u);
  ExpectIdle(*engine);
}

TEST_F(EngineTest, EndsARequestWhoseTimeIsOver) {
  const auto engine = MakeEngine({.n_threads = 1});
  GenerationRequest request = Request("r", "base", 4);
  request.timeout_ms = 0;
  DF_EXPECT_OK(engine->Submit(request));
  const Outcome outcome = Await(*request.events);
  EXPECT_EQ(outcome.finish, FinishReason::kCancelled);
  EXPECT_EQ(outcome.status.code(), StatusCode::kDeadlineExceeded);
  ExpectIdle(*engine);
}

TEST_F(EngineTest, ItsEndIsTheEndOfEveryRequest) {
  std::vector<GenerationRequest> requests;
  requests.reserve(20);
  for (int i = 0; i < 20; ++i) requests.push_back(Request(std::to_string(i), i % 2 == 0 ? "base" : "delta2", 100));
  {
    const auto engine = MakeEngine({.n_threads = 2, .max_num_seqs = 4});
    for (const GenerationRequest& request : requests) DF_EXPECT_OK(engine->Submit(request));
  }
  for (const GenerationRequest& request : requests) EXPECT_TRUE(Await(*request.events).finish.has_value());
}

TEST_F(EngineTest, EveryAcceptedRequestEndsOnceUnderLoadFromManyThreads) {
  const auto engine = MakeEngine({.n_threads = 2,
                                  .max_num_seqs = 6,
                                  .max_num_batched_tokens = 24,
                                  .max_model_len = 64,
                                  .max_queued_requests = 40,
                                  .kv_cache_bytes = KvBytes(128, DType::kBf16)});
  const auto client = [&](uint64_t seed) {
    const std::vector<std::string> names = {"base", "delta1", "delta2", "adapter", "broken"};
    size_t n_ended = 0;
    size_t n_accepted = 0;
    std::vector<GenerationRequest> requests;
    for (uint64_t i = 0; i < 40; ++i) {
      const uint64_t bits = RandomBits(seed, i);
      requests.push_back(Request(std::to_string(seed) + "-" + std::to_string(i), names[bits % 5], 1 + bits / 8 % 40));
      if (!engine->Submit(requests.back()).ok()) {
        requests.pop_back();
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        continue;
      }
      ++n_accepted;
      if (bits / 512 % 4 == 0) engine->Cancel(requests[bits / 4096 % requests.size()].id);
    }
    for (const GenerationRequest& request : requests) n_ended += Await(*request.events).finish.has_value() ? 1 : 0;
    return n_ended == n_accepted;
  };
  std::vector<std::future<bool>> clients;
  clients.reserve(4);
  for (uint64_t seed = 0; seed < 4; ++seed) clients.push_back(std::async(std::launch::async, client, seed));
  for (auto& done : clients) EXPECT_TRUE(done.get());
  ExpectIdle(*engine);
}

TEST_F(EngineTest, SleepsWithoutWork) {
  const auto engine = MakeEngine({.n_threads = 2});
  const GenerationRequest request = Request("r", "base", 4);
  DF_EXPECT_OK(engine->Submit(request));
  Await(*request.events);
  EXPECT_LT(CpuMsOfAFifthOfASecond(), 50);
  EXPECT_TRUE(engine->Healthy());
}

TEST_F(EngineTest, CountsWhatItDoes) {
  const auto engine = MakeEngine({.n_threads = 1});
  const GenerationRequest request = Request("r", "delta1", 17);
  DF_EXPECT_OK(engine->Submit(request));
  Await(*request.events);
  ExpectIdle(*engine);
  const EngineStats stats = engine->Stats();
  EXPECT_EQ(stats.prompt_tokens, 17u);
  EXPECT_EQ(stats.generation_tokens, 20u);
  EXPECT_EQ(stats.steps, 20u);
  EXPECT_EQ(stats.preemptions, 0u);
  EXPECT_EQ(stats.weight_bytes, weights_.base->bytes);
  EXPECT_GT(stats.kv_blocks_total, 0u);
}

}  // namespace
}  // namespace df
