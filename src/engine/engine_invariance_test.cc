// A request's answer has the same bits whatever runs beside it, however it is cut, and after preemption.
#include <algorithm>

#include "engine/batch.h"
#include "engine/engine_fixture.h"

namespace df {
namespace {

using testing::Await;
using testing::kTinyVocab;

class EngineInvariance : public EngineFixture {
 protected:
  // Greedy and sampled, short and long, of every variant.
  static std::vector<GenerationRequest> Requests() {
    std::vector<GenerationRequest> requests;
    const std::vector<std::string> variants = {"base", "delta1", "adapter", "delta2",
                                               "base", "delta1", "adapter", "delta2"};
    for (size_t i = 0; i < variants.size(); ++i) {
      requests.push_back(Request(std::to_string(i), variants[i], 1 + 9 * i));
      requests.back().params.max_tokens = 24 + i;
      requests.back().params.ignore_eos = true;
      if (i % 2 == 1) {
        requests.back().params.temperature = 1.0;
        requests.back().params.top_p = 0.95;
        requests.back().params.seed = 40 + i;
      }
    }
    return requests;
  }

  static std::vector<std::vector<int32_t>> Answers(Engine& engine, std::vector<GenerationRequest> requests) {
    for (const GenerationRequest& request : requests) DF_EXPECT_OK(engine.Submit(request));
    std::vector<std::vector<int32_t>> answers;
    for (const GenerationRequest& request : requests) answers.push_back(Await(*request.events).tokens);
    return answers;
  }

  static std::vector<std::vector<int32_t>> AnswersAlone(DType kv_dtype) {
    const auto engine = MakeEngine({.n_threads = 1, .kv_dtype = kv_dtype});
    std::vector<std::vector<int32_t>> alone;
    for (const GenerationRequest& request : Requests()) alone.push_back(Answers(*engine, {request}).front());
    return alone;
  }
};

TEST_F(EngineInvariance, AnswersTheSameAloneInPairsAndAllTogetherWithAnyNumberOfThreads) {
  const auto alone = AnswersAlone(DType::kBf16);
  for (size_t i = 0; i < alone.size(); ++i) EXPECT_EQ(alone[i].size(), 24 + i);
  for (const size_t n_threads : {1u, 2u, 3u}) {
    const auto engine = MakeEngine({.n_threads = n_threads});
    EXPECT_EQ(Answers(*engine, Requests()), alone) << n_threads << " threads";
    const std::vector<GenerationRequest> requests = Requests();
    for (size_t i = 0; i + 1 < requests.size(); ++i) {
      const std::vector<GenerationRequest> pair = {Requests()[i], Requests()[i + 1]};
      EXPECT_EQ(Answers(*engine, pair), (std::vector{alone[i], alone[i + 1]})) << "pair " << i;
    }
    EXPECT_EQ(testing::IdleStats(*engine).kv_blocks_used, 0u);
  }
}

TEST_F(EngineInvariance, AnswersTheSameHoweverThePromptsAreCutIntoChunks) {
  const auto alone = AnswersAlone(DType::kF32);
  for (const size_t n_batched : {8u, 13u, 64u}) {
    const auto engine = MakeEngine({.n_threads = 2, .max_num_batched_tokens = n_batched, .kv_dtype = DType::kF32});
    EXPECT_EQ(Answers(*engine, Requests()), alone) << n_batched << " rows a step";
  }
}

TEST_F(EngineInvariance, AnswersTheSameAfterPreemption) {
  for (const DType kv_dtype : {DType::kBf16, DType::kF32}) {
    const auto alone = AnswersAlone(kv_dtype);
    const auto engine = MakeEngine({.n_threads = 2,
                                    .max_num_batched_tokens = 29,
                                    .max_model_len = 112,
                                    .kv_dtype = kv_dtype,
                                    .kv_cache_bytes = KvBytes(112, kv_dtype)});
    EXPECT_EQ(Answers(*engine, Requests()), alone) << DTypeName(kv_dtype);
    EXPECT_GT(engine->Stats().preemptions, 0u);
    EXPECT_EQ(testing::IdleStats(*engine).kv_blocks_used, 0u);
  }
}

struct Replay {
  size_t n_chunk = 0;   // prompt rows a step
  size_t n_replay = 0;  // answer rows a step
  size_t n_others = 0;  // sequences beside it
};

// The next rows of every sequence that has any.
std::vector<Piece> PiecesOf(const std::vector<std::unique_ptr<Sequence>>& sequences, const Replay& replay) {
  std::vector<Piece> pieces;
  for (const auto& sequence : sequences) {
    if (sequence->n_pending() == 0) continue;
    const size_t n_most = sequence->phase() == kernels::Phase::kPrefill ? replay.n_chunk : replay.n_replay;
    pieces.push_back({sequence.get(), std::min(n_most, sequence->n_runnable()), sequence->phase()});
  }
  return pieces;
}

// The logits behind the last known token of the first request, without the engine around.
std::vector<float> LastLogits(const std::shared_ptr<const BaseWeights>& base,
                              const std::vector<GenerationRequest>& requests, const Replay& replay) {
  KernelContext context(1 + replay.n_others % 2);
  KvPool pool(base->config, {.dtype = DType::kBf16, .n_blocks = 64});
  KvBlocks blocks(64);
  Decoder decoder(base);
  std::vector<std::unique_ptr<Sequence>> sequences;
  for (size_t i = 0; i <= replay.n_others; ++i) {
    sequences.push_back(MakeSequence(requests[i], {.context_tokens = 256, .vocab = kTinyVocab}, 0, blocks));
    for (int32_t t = 0; t < 20; ++t) sequences.back()->generated.push_back((t * 37 + 11) % 256);
    EXPECT_TRUE(sequences.back()->kv.TryCover(sequences.back()->n_tokens()));
  }
  StepBatch step;
  std::vector<float> logits;
  while (sequences.front()->n_pending() > 0) {
    const std::vector<Piece> pieces = PiecesOf(sequences, replay);
    BuildStep(pieces, kTinyVocab, step);
    const MatView<const float> rows = decoder.Step(context, step.batch, pool);
    for (size_t i = 0; i < step.sampling.size(); ++i) {
      if (step.sampling[i] == sequences.front().get()) logits.assign(rows.Row(i), rows.Row(i) + kTinyVocab);
    }
    for (const Piece& piece : pieces) piece.sequence->n_cached += piece.n_rows;
  }
  return logits;
}

TEST_F(EngineInvariance, ReplayGivesTheSameLogitsBitForBit) {
  std::vector<GenerationRequest> requests = Requests();
  for (size_t first = 0; first < 4; ++first) {
    const std::vector<float> one_by_one =
        LastLogits(weights_.base, requests, {.n_chunk = 64, .n_replay = 1, .n_others = 0});
    ASSERT_EQ(one_by_one.size(), kTinyVocab);
    for (const Replay& replay : {Replay{64, 20, 0}, Replay{5, 3, 1}, Replay{7, 20, 3}, Replay{1, 1, 7}}) {
      EXPECT_EQ(LastLogits(weights_.base, requests, replay), one_by_one) << "request " << first;
    }
    std::rotate(requests.begin(), requests.begin() + 1, requests.end());
  }
}

}  // namespace
}  // namespace df
