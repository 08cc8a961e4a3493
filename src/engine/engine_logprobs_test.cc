// Log-probabilities against the log-softmax of the model's logits, and that nothing around a request changes them.
#include <algorithm>
#include <cmath>

#include "engine/engine_fixture.h"
#include "engine/logprobs.h"
#include "testing/decode.h"

namespace df {
namespace {

using kernels::TokenLogprob;
using testing::kTinyVocab;

// What a client has heard in the end.
struct Heard {
  std::vector<int32_t> tokens;
  std::vector<std::vector<TokenLogprob>> prompt, answer;  // a row a token
  std::optional<FinishReason> finish;
  Status status;
};

Heard Listen(EventQueue& events) {
  Heard heard;
  while (!heard.finish) {
    for (const TokenEvent& event : events.TakeAllBlocking()) {
      const size_t n_each = event.n_prompt == 0 ? event.logprobs.size() : event.logprobs.size() / event.n_prompt;
      for (size_t i = 0; i < event.n_prompt; ++i) {
        const auto row = event.logprobs.begin() + static_cast<std::ptrdiff_t>(i * n_each);
        heard.prompt.emplace_back(row, row + static_cast<std::ptrdiff_t>(n_each));
      }
      if (event.token >= 0) {
        heard.tokens.push_back(event.token);
        heard.answer.push_back(event.logprobs);
      }
      heard.finish = event.finish;
      heard.status = event.status;
    }
  }
  return heard;
}

using Bits = std::vector<std::pair<int32_t, float>>;

Bits BitsOf(const Heard& heard) {
  Bits bits;
  for (const auto* rows : {&heard.prompt, &heard.answer}) {
    for (const std::vector<TokenLogprob>& row : *rows) {
      for (const TokenLogprob& one : row) bits.emplace_back(one.token, one.logprob);
    }
  }
  return bits;
}

double ExactLogprob(const std::vector<float>& logits, int32_t token) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float x : logits) sum += std::exp(double{x} - top);
  return double{logits[static_cast<size_t>(token)]} - top - std::log(sum);
}

class EngineLogprobs : public EngineFixture {
 protected:
  static GenerationRequest Asking(const std::string& id, const std::string& variant, size_t n_prompt) {
    GenerationRequest request = Request(id, variant, n_prompt);
    request.params.max_tokens = 6;
    request.params.ignore_eos = true;
    request.params.logprobs = 3;
    request.params.prompt_logprobs = 2;
    return request;
  }
  static Heard Ask(Engine& engine, const GenerationRequest& request) {
    DF_EXPECT_OK(engine.Submit(request));
    return Listen(*request.events);
  }
  static void ExpectRow(const std::vector<TokenLogprob>& row, int32_t token, size_t n_top,
                        const std::vector<float>& logits) {
    ASSERT_EQ(row.size(), 1 + n_top);
    EXPECT_EQ(row[0].token, token);
    for (const TokenLogprob& one : row) {
      // Logits of some units, a sum of 260 terms: some 2^-20.
      EXPECT_NEAR(double{one.logprob}, ExactLogprob(logits, one.token), 1e-5);
    }
    std::vector<float> sorted = logits;
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    for (size_t i = 0; i < n_top; ++i) EXPECT_EQ(logits[static_cast<size_t>(row[1 + i].token)], sorted[i]);
  }
};

TEST_F(EngineLogprobs, AreTheLogSoftmaxOfTheModelsLogits) {
  const auto engine = MakeEngine({.n_threads = 2, .kv_dtype = DType::kF32});
  KernelContext context(1);
  Decoder decoder(weights_.base);
  for (const std::string variant : {"base", "delta1", "adapter"}) {
    const GenerationRequest request = Asking(variant, variant, 100);  // more than one block of rows
    const Heard heard = Ask(*engine, request);
    ASSERT_EQ(heard.prompt.size(), 99u);
    ASSERT_EQ(heard.answer.size(), 6u);

    testing::Sequence sequence(*weights_.base, weights_.variants.at(variant).get(), 256);
    const auto rows =
        testing::Logits(context, decoder, sequence, request.prompt, kernels::Phase::kPrefill, request.prompt.size());
    for (size_t i = 0; i < 99; ++i) ExpectRow(heard.prompt[i], request.prompt[i + 1], 2, rows[i]);
    std::vector<float> last = rows.back();
    for (size_t i = 0; i < 6; ++i) {
      ExpectRow(heard.answer[i], heard.tokens[i], 3, last);
      EXPECT_EQ(heard.answer[i][1].token, heard.tokens[i]) << "greedy: the likeliest is the one drawn";
      EXPECT_EQ(heard.answer[i][1].logprob, heard.answer[i][0].logprob);
      last =
          testing::Feed(context, decoder, sequence, std::span(heard.tokens).subspan(i, 1), kernels::Phase::kDecode)[0];
    }
  }
}

TEST_F(EngineLogprobs, HaveTheSameBitsAloneAndInAnyBatchHoweverItIsCut) {
  const std::vector<std::string> variants = {"base", "delta1", "adapter", "delta2", "base", "delta1"};
  std::vector<Bits> alone;
  const auto single = MakeEngine({.n_threads = 1});
  for (size_t i = 0; i < variants.size(); ++i) {
    alone.push_back(BitsOf(Ask(*single, Asking(std::to_string(i), variants[i], 1 + 17 * i))));
    EXPECT_EQ(alone.back().size(), 17 * i * 3 + size_t{6} * 4);
  }
  for (const size_t n_batched : {9u, 37u, 512u}) {
    const auto engine = MakeEngine({.n_threads = 2, .max_num_seqs = 8, .max_num_batched_tokens = n_batched});
    std::vector<GenerationRequest> requests;
    for (size_t i = 0; i < variants.size(); ++i) {
      requests.push_back(Asking(std::to_string(i), variants[i], 1 + 17 * i));
      DF_EXPECT_OK(engine->Submit(requests.back()));
    }
    for (size_t i = 0; i < variants.size(); ++i) {
      EXPECT_EQ(BitsOf(Listen(*requests[i].events)), alone[i]) << n_batched << " rows a step, request " << i;
    }
  }
}

TEST_F(EngineLogprobs, OfAPromptAreToldOnceThoughItIsPreempted) {
  const auto alone = MakeEngine({.n_threads = 1});
  const auto crowded = MakeEngine({.n_threads = 2,
                                   .max_num_batched_tokens = 29,
                                   .max_model_len = 112,
                                   .kv_cache_bytes = KvBytes(112, DType::kBf16)});
  std::vector<GenerationRequest> requests;
  for (size_t i = 0; i < 6; ++i) {
    requests.push_back(Asking(std::to_string(i), i % 2 == 0 ? "base" : "delta1", 20 + 9 * i));
    requests.back().params.max_tokens = 30;
    DF_EXPECT_OK(crowded->Submit(requests.back()));
  }
  for (const GenerationRequest& request : requests) {
    const Bits bits = BitsOf(Listen(*request.events));
    GenerationRequest again = request;
    again.events = std::make_shared<EventQueue>();
    EXPECT_EQ(bits, BitsOf(Ask(*alone, again))) << request.id;
  }
  EXPECT_GT(crowded->Stats().preemptions, 0u);
  EXPECT_EQ(testing::IdleStats(*crowded).kv_blocks_used, 0u);
}

TEST_F(EngineLogprobs, OfAPromptAreComputedThoughThePrefixCacheHasIt) {
  const auto engine = MakeEngine({.n_threads = 1});
  const auto hits = [&] { return testing::IdleStats(*engine).prefix_cache_hits; };
  const auto fresh = MakeEngine({.n_threads = 1, .enable_prefix_caching = false});
  const Bits expected = BitsOf(Ask(*fresh, Asking("fresh", "base", 80)));

  EXPECT_EQ(BitsOf(Ask(*engine, Asking("first", "base", 80))), expected);
  EXPECT_EQ(BitsOf(Ask(*engine, Asking("second", "base", 80))), expected);
  EXPECT_EQ(hits(), 0u);
  EXPECT_EQ(testing::IdleStats(*engine).prefix_cache_queries, 0u);

  GenerationRequest answer_alone = Asking("third", "base", 80);
  answer_alone.params.prompt_logprobs.reset();
  const Heard heard = Ask(*engine, answer_alone);
  EXPECT_EQ(hits(), 64u) << "what they computed is there for others";
  EXPECT_EQ(BitsOf(heard), Bits(expected.end() - 6 * 4, expected.end()));
}

TEST_F(EngineLogprobs, AreOfTheModelNotOfTheDraw) {
  const auto engine = MakeEngine({.n_threads = 1});
  GenerationRequest greedy = Asking("greedy", "base", 12);
  const Heard free = Ask(*engine, greedy);
  GenerationRequest drawn = Asking("drawn", "base", 12);
  drawn.params.temperature = 1.9;
  drawn.params.top_k = 40;
  drawn.params.seed = 11;
  drawn.params.max_tokens = 1;
  EXPECT_EQ(Ask(*engine, drawn).answer[0][1].logprob, free.answer[0][1].logprob);

  // A stop token that is forbidden until min_tokens keeps its place among the likeliest.
  GenerationRequest forbidding = Asking("forbidding", "base", 12);
  forbidding.params.ignore_eos = false;
  forbidding.params.stop_ids = {free.tokens[0]};
  forbidding.params.min_tokens = 1;
  forbidding.params.max_tokens = 1;
  const Heard heard = Ask(*engine, forbidding);
  EXPECT_NE(heard.tokens[0], free.tokens[0]);
  EXPECT_EQ(heard.answer[0][1].token, free.tokens[0]);
  EXPECT_EQ(heard.answer[0][1].logprob, free.answer[0][1].logprob);
  EXPECT_EQ(heard.answer[0][0].token, heard.tokens[0]);
  EXPECT_EQ(heard.answer[0][0].logprob, free.answer[0][2].logprob) << "the second likeliest was drawn";
}

TEST_F(EngineLogprobs, NoTokenIsDrawnWhereNoneIsWanted) {
  const auto engine = MakeEngine({.n_threads = 1, .max_model_len = 100});
  for (const size_t n_prompt : {1u, 16u, 33u, 100u}) {
    GenerationRequest request = Asking("r" + std::to_string(n_prompt), "delta1", n_prompt);
    request.params.max_tokens = 0;
    const EngineStats before = testing::IdleStats(*engine);
    const Heard heard = Ask(*engine, request);
    EXPECT_TRUE(heard.tokens.empty());
    EXPECT_EQ(heard.prompt.size(), n_prompt - 1);
    EXPECT_EQ(heard.finish, FinishReason::kLength);
    DF_EXPECT_OK(heard.status);
    const EngineStats after = testing::IdleStats(*engine);
    EXPECT_EQ(after.prompt_tokens - before.prompt_tokens, n_prompt);
    EXPECT_EQ(after.generation_tokens, before.generation_tokens);
    EXPECT_EQ(after.kv_blocks_used, 0u);
  }
  GenerationRequest too_long = Asking("long", "base", 101);
  too_long.params.max_tokens = 0;
  EXPECT_TRUE(IsContextLengthExceeded(engine->Submit(too_long)));
}

TEST_F(EngineLogprobs, BrokenLogitsOfAPromptEndThatRequestAlone) {
  const auto engine = MakeEngine({.n_threads = 1, .max_num_seqs = 4, .max_num_batched_tokens = 16});
  for (const std::optional<size_t> max_tokens : {std::optional<size_t>(0), std::optional<size_t>(4)}) {
    for (const size_t n_prompt : {5u, 60u}) {  // in one step, and in several
      GenerationRequest broken = Asking("broken", "broken", n_prompt);
      broken.params.max_tokens = max_tokens;
      const GenerationRequest sound = Asking("sound", "base", 30);
      DF_EXPECT_OK(engine->Submit(broken));
      DF_EXPECT_OK(engine->Submit(sound));
      const Heard heard = Listen(*broken.events);
      EXPECT_EQ(heard.finish, FinishReason::kError);
      EXPECT_EQ(heard.status.code(), StatusCode::kInternal);
      EXPECT_TRUE(heard.prompt.empty() && heard.tokens.empty());
      EXPECT_EQ(Listen(*sound.events).answer.size(), 6u);
    }
  }
  EXPECT_EQ(testing::IdleStats(*engine).kv_blocks_used, 0u);
}

TEST_F(EngineLogprobs, MoreThanTheEngineGivesAreRefusedNamingThem) {
  const auto engine = MakeEngine({.n_threads = 1, .max_logprobs = 5});
  GenerationRequest request = Asking("r", "base", 5);
  request.params.logprobs = 6;
  EXPECT_EQ(engine->Submit(request).message(), "logprobs must be at most 5, got 6");
  request.params.logprobs = 5;
  request.params.prompt_logprobs = SIZE_MAX;
  EXPECT_TRUE(engine->Submit(request).message().starts_with("prompt_logprobs must be at most 5"));

  const auto generous = MakeEngine({.n_threads = 1, .max_logprobs = 1000});
  request.params.logprobs = request.params.prompt_logprobs = 1000;  // more than there are tokens
  const Heard heard = Ask(*generous, request);
  EXPECT_EQ(heard.prompt[0].size(), 1 + kTinyVocab);
  EXPECT_EQ(heard.answer[0].size(), 1 + kTinyVocab);
}

TEST_F(EngineLogprobs, OfALongPromptTakeTheMemoryOfAFewRows) {
  const auto activation_bytes = [&](bool asks) {
    const auto engine = MakeEngine({.n_threads = 1});
    GenerationRequest request = Asking("r", "base", 240);
    if (!asks) request.params.prompt_logprobs.reset();
    Ask(*engine, request);
    return testing::IdleStats(*engine).activation_bytes;
  };
  const size_t row_bytes = sizeof(float) * (kTinyVocab + weights_.base->config.d_model);
  const uint64_t plain = activation_bytes(false);
  const uint64_t asking = activation_bytes(true);
  EXPECT_GT(asking, plain);
  // Scratch of the head's product over so many rows comes on top: no more than the rows themselves.
  EXPECT_LE(asking - plain, 2 * StepLogprobs::kPromptRows * row_bytes);
}

}  // namespace
}  // namespace df
