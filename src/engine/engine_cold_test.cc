// Requests whose weights are not there yet, or never.
#include <thread>

#include "engine/engine_fixture.h"
#include "testing/late_generation.h"

namespace df {
namespace {

using testing::Await;
using testing::LateGeneration;
using testing::Outcome;

class EngineCold : public EngineFixture {
 protected:
  GenerationRequest Cold(const std::string& id) {
    GenerationRequest request = Request(id, "delta1", 9);
    request.variant = late_;
    return request;
  }
  void AwaitAsk() {
    while (late_->n_asks == 0) std::this_thread::yield();
  }

  std::shared_ptr<LateGeneration> late_ =
      std::make_shared<LateGeneration>(FixedGeneration(weights_.variants["delta1"]));
};

TEST_F(EngineCold, AnswersOthersFirstAndTheColdOneOnceItsWeightsCome) {
  const auto engine = MakeEngine({.n_threads = 1, .max_num_seqs = 1});
  const std::vector<int32_t> expected = Answer(*engine, Request("warm", "delta1", 9)).tokens;
  const GenerationRequest cold = Cold("cold");
  DF_EXPECT_OK(engine->Submit(cold));
  AwaitAsk();
  EXPECT_EQ(Answer(*engine, Request("other", "base", 9)).tokens.size(), 20u);
  EXPECT_EQ(engine->Stats().n_waiting, 1u);
  late_->has_come = true;
  engine->Wake();
  EXPECT_EQ(Await(*cold.events).tokens, expected);
  EXPECT_EQ(testing::IdleStats(*engine).kv_blocks_used, 0u);
}

TEST_F(EngineCold, AFailedLoadEndsItsRequestsAsUnavailableWithTheCause) {
  const auto engine = MakeEngine({.n_threads = 1});
  std::vector<GenerationRequest> requests;
  for (int i = 0; i < 10; ++i) {
    requests.push_back(Cold(std::to_string(i)));
    DF_EXPECT_OK(engine->Submit(requests.back()));
  }
  AwaitAsk();
  late_->fails = true;
  engine->Wake();
  for (const GenerationRequest& request : requests) {
    const Outcome outcome = Await(*request.events);
    EXPECT_EQ(outcome.finish, FinishReason::kError);
    EXPECT_EQ(outcome.status.code(), StatusCode::kUnavailable);
    EXPECT_NE(outcome.status.message().find("\"delta1\""), std::string::npos);
    EXPECT_NE(outcome.status.message().find("the digest does not match"), std::string::npos);
  }
  EXPECT_EQ(testing::IdleStats(*engine).n_waiting, 0u);
}

TEST_F(EngineCold, SleepsWhileAllItsWorkWaitsForWeights) {
  const auto engine = MakeEngine({.n_threads = 2});
  const GenerationRequest cold = Cold("cold");
  DF_EXPECT_OK(engine->Submit(cold));
  AwaitAsk();
  EXPECT_LT(CpuMsOfAFifthOfASecond(), 50);
  EXPECT_EQ(late_->n_asks, 1);
  EXPECT_TRUE(engine->Healthy());
  engine->Cancel("cold");
  EXPECT_EQ(Await(*cold.events).finish, FinishReason::kCancelled);
}

TEST_F(EngineCold, KeepsADeadlineThatPassesInItsSleep) {
  const auto engine = MakeEngine({.n_threads = 1});
  GenerationRequest cold = Cold("cold");
  cold.timeout_ms = 30;
  DF_EXPECT_OK(engine->Submit(cold));
  const Outcome outcome = Await(*cold.events);
  EXPECT_EQ(outcome.finish, FinishReason::kCancelled);
  EXPECT_EQ(outcome.status.code(), StatusCode::kDeadlineExceeded);
}

TEST_F(EngineCold, WhoWaitsTooLongForWeightsIsToldAndTheLoadGoesOn) {
  const auto engine = MakeEngine({.n_threads = 1, .longest_weights_wait_us = 30'000});
  const GenerationRequest cold = Cold("cold");
  DF_EXPECT_OK(engine->Submit(cold));
  const Outcome outcome = Await(*cold.events);
  EXPECT_EQ(outcome.finish, FinishReason::kError);
  EXPECT_EQ(outcome.status.code(), StatusCode::kUnavailable);
  EXPECT_NE(outcome.status.message().find("\"delta1\""), std::string::npos);
  EXPECT_NE(outcome.status.message().find("variant-wait-timeout"), std::string::npos);
  EXPECT_EQ(late_->n_ended_asks, 0) << "it is still wanted";
  EXPECT_EQ(testing::IdleStats(*engine).n_waiting, 0u);
  late_->has_come = true;
  const GenerationRequest again = Cold("again");
  DF_EXPECT_OK(engine->Submit(again));
  EXPECT_EQ(Await(*again.events).tokens.size(), 20u);
}

TEST_F(EngineCold, WaitingForATurnIsNoWaitForWeights) {
  const auto engine = MakeEngine({.n_threads = 1, .max_num_seqs = 1, .longest_weights_wait_us = 1});
  std::vector<GenerationRequest> requests;
  for (int i = 0; i < 5; ++i) {
    requests.push_back(Request(std::to_string(i), "delta1", 9));
    DF_EXPECT_OK(engine->Submit(requests.back()));
  }
  for (const GenerationRequest& request : requests) EXPECT_EQ(Await(*request.events).tokens.size(), 20u);
}

TEST_F(EngineCold, WhenTheLastOfALineIsCancelledItsWeightsAreWantedNoMore) {
  const auto engine = MakeEngine({.n_threads = 1});
  const GenerationRequest first = Cold("first"), second = Cold("second");
  DF_EXPECT_OK(engine->Submit(first));
  DF_EXPECT_OK(engine->Submit(second));
  AwaitAsk();
  engine->Cancel("first");
  Await(*first.events);
  EXPECT_EQ(late_->n_ended_asks, 0);
  engine->Cancel("second");
  Await(*second.events);
  EXPECT_EQ(late_->n_ended_asks, 1);
}

TEST_F(EngineCold, ItsEndIsTheEndOfThoseWhoWaitForWeights) {
  const GenerationRequest cold = Cold("cold");
  {
    const auto engine = MakeEngine({.n_threads = 1});
    DF_EXPECT_OK(engine->Submit(cold));
    AwaitAsk();
  }
  EXPECT_EQ(Await(*cold.events).finish, FinishReason::kCancelled);
}

}  // namespace
}  // namespace df
