// The prefix cache as answers show it: never in their bits, only in what is computed.
#include "engine/batch.h"
#include "engine/engine_fixture.h"

namespace df {
namespace {

using testing::kTinyVocab;

constexpr size_t kBlock = kernels::kKvBlockTokens;

class EnginePrefix : public EngineFixture {
 protected:
  // A prompt of `n_prompt` tokens, of which the first `n_common` are the same in all.
  static GenerationRequest Request(const std::string& id, const std::string& variant, size_t n_common,
                                   size_t n_prompt) {
    GenerationRequest request = EngineFixture::Request(id, variant, n_prompt);
    for (size_t i = 0; i < n_common; ++i) request.prompt[i] = static_cast<int32_t>((i * 7 + 3) % 256);
    request.params.ignore_eos = true;
    return request;
  }
  static uint64_t Hits(Engine& engine, const GenerationRequest& request) {
    const uint64_t before = testing::IdleStats(engine).prefix_cache_hits;
    Answer(engine, request);
    return testing::IdleStats(engine).prefix_cache_hits - before;
  }
};

TEST_F(EnginePrefix, AnswersAreTheSameWithAndWithoutHits) {
  std::vector<GenerationRequest> requests;
  for (const std::string variant : {"base", "delta1", "adapter"}) {
    for (const size_t n_prompt : {40u, 48u, 49u, 90u}) {
      requests.push_back(Request(variant + std::to_string(n_prompt), variant, 40, n_prompt));
      if (n_prompt != 48) continue;
      requests.back().params.temperature = 1.0;
      requests.back().params.seed = 3;
    }
  }
  for (const DType kv_dtype : {DType::kBf16, DType::kF32}) {
    const auto plain = MakeEngine({.n_threads = 1, .kv_dtype = kv_dtype, .enable_prefix_caching = false});
    const auto cached = MakeEngine({.n_threads = 2, .max_num_batched_tokens = 23, .kv_dtype = kv_dtype});
    std::vector<std::vector<int32_t>> expected;
    for (const GenerationRequest& request : requests) expected.push_back(Answer(*plain, request).tokens);
    EXPECT_EQ(plain->Stats().prefix_cache_hits, 0u);
    for (int round = 0; round < 2; ++round) {
      std::vector<GenerationRequest> again = requests;
      for (GenerationRequest& request : again) {
        request.events = std::make_shared<EventQueue>();
        DF_EXPECT_OK(cached->Submit(request));
      }
      for (size_t i = 0; i < again.size(); ++i) {
        EXPECT_EQ(testing::Await(*again[i].events).tokens, expected[i]) << again[i].id << " round " << round;
      }
    }
    const EngineStats stats = testing::IdleStats(*cached);
    EXPECT_EQ(stats.kv_blocks_used, 0u);
    // In the second round all full blocks are known, but for one token of the prompt that has nothing else.
    EXPECT_GE(stats.prefix_cache_hits, 3u * (2 + 2 + 3 + 5) * kBlock);
    EXPECT_EQ(stats.prefix_cache_queries, 2u * 3 * (40 + 48 + 49 + 90));
    EXPECT_EQ(stats.prompt_tokens, stats.prefix_cache_queries);
  }
}

TEST_F(EnginePrefix, LogitsHaveTheSameBitsHoweverMuchWasKnown) {
  KernelContext context(1);
  for (const std::string variant : {"base", "delta1", "adapter"}) {
    KvPool pool(weights_.base->config, {.dtype = DType::kBf16, .n_blocks = 64});
    KvBlocks blocks(64);
    Decoder decoder(weights_.base);
    const auto domain = MakePrefixDomain({"base", "bf16", variant, ""});
    const auto logits = [&](size_t n_prompt, size_t n_chunk, bool shares, size_t& n_known) {
      auto sequence =
          MakeSequence(Request("r", variant, 64, n_prompt), {.context_tokens = 256, .vocab = kTinyVocab}, 0, blocks);
      if (sequence->request.variant) sequence->lease = sequence->request.variant->TryLease(0).lease;
      if (shares) sequence->prefix_domain = domain;
      PrefixMatch match;
      blocks.FindPrefix(domain, sequence->known_tokens(), sequence->n_shareable_blocks(), match);
      sequence->kv.Adopt(match);
      sequence->n_cached = n_known = match.blocks.size() * kBlock;
      EXPECT_TRUE(sequence->kv.TryCover(n_prompt));
      StepBatch step;
      std::vector<float> last;
      while (sequence->n_pending() > 0) {
        const std::vector<Piece> pieces = {
            {sequence.get(), std::min(n_chunk, sequence->n_runnable()), sequence->phase()}};
        BuildStep(pieces, kTinyVocab, step);
        const MatView<const float> rows = decoder.Step(context, step.batch, pool);
        if (!step.sampling.empty()) last.assign(rows.Row(0), rows.Row(0) + kTinyVocab);
        sequence->Advance(pieces[0].n_rows);
      }
      return last;
    };
    size_t n_known = 0;
    for (const size_t n_prompt : {64u, 65u, 80u, 100u}) {
      const std::vector<float> alone = logits(n_prompt, 7, false, n_known);
      EXPECT_EQ(n_known, 0u);
      for (const size_t n_chunk : {5u, 64u}) {
        EXPECT_EQ(logits(n_prompt, n_chunk, true, n_known), alone) << variant << " " << n_prompt;
      }
      EXPECT_EQ(n_known, (n_prompt - 1) / kBlock * kBlock);
    }
  }
}

TEST_F(EnginePrefix, HitsStayWithinGenerationAndSalt) {
  const auto engine = MakeEngine({.n_threads = 1});
  const auto request = [](const std::string& variant, const std::string& salt) {
    GenerationRequest made = Request("r", variant, 40, 40);
    made.cache_salt = salt;
    return made;
  };
  EXPECT_EQ(Hits(*engine, request("base", "")), 0u);
  EXPECT_EQ(Hits(*engine, request("base", "")), 32u);
  EXPECT_EQ(Hits(*engine, request("base", "tenant")), 0u);
  EXPECT_EQ(Hits(*engine, request("base", "tenant")), 32u);
  EXPECT_EQ(Hits(*engine, request("delta1", "")), 0u);
  EXPECT_EQ(Hits(*engine, request("delta2", "")), 0u);
  EXPECT_EQ(Hits(*engine, request("delta1", "")), 32u) << "whatever object stands for the generation";
}

TEST_F(EnginePrefix, AnswersAreSharedOnlyWhereRoundingMayDiffer) {
  for (const bool batch_invariant : {true, false}) {
    const auto engine = MakeEngine({.n_threads = 1, .kernels = {.batch_invariant = batch_invariant}});
    GenerationRequest first = Request("first", "base", 20, 20);
    first.params.max_tokens = 30;
    const std::vector<int32_t> answer = Answer(*engine, first).tokens;
    GenerationRequest second = Request("second", "base", 20, 20);
    second.prompt.insert(second.prompt.end(), answer.begin(), answer.end());
    second.prompt.push_back(5);  // 51 tokens; the last drawn one was never computed: 49 were
    EXPECT_EQ(Hits(*engine, second), batch_invariant ? 16u : 48u);
  }
}

}  // namespace
}  // namespace df
