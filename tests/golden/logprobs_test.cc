// What the engine says of a prompt's tokens against the log-softmax of the reference implementation's logits.
#include "engine/engine.h"
#include "golden_fixtures.h"

namespace df::testing {
namespace {

double ReferenceLogprob(const float* logits, size_t vocab, int32_t token) {
  const double top = *std::max_element(logits, logits + vocab);
  double sum = 0;
  for (size_t i = 0; i < vocab; ++i) sum += std::exp(double{logits[i]} - top);
  return double{logits[static_cast<size_t>(token)]} - top - std::log(sum);
}

std::vector<kernels::TokenLogprob> PromptLogprobs(Engine& engine, const std::vector<int32_t>& ids, size_t n_top) {
  GenerationRequest request;
  request.id = "r";
  request.prompt = ids;
  request.params.max_tokens = 0;
  request.params.prompt_logprobs = n_top;
  request.events = std::make_shared<EventQueue>();
  DF_EXPECT_OK(engine.Submit(request));
  std::vector<kernels::TokenLogprob> told;
  for (bool ended = false; !ended;) {
    for (const TokenEvent& event : request.events->TakeAllBlocking()) {
      told.insert(told.end(), event.logprobs.begin(), event.logprobs.end());
      ended = event.finish.has_value();
      DF_EXPECT_OK(event.status);
    }
  }
  return told;
}

TEST(GoldenLogprobs, OfPromptsAreThoseOfTheReferencesLogits) {
  constexpr size_t kTop = 5;
  // A logit and the logarithm of the sum may each be off by as much as a logit.
  constexpr double kTolerance = 2 * double{kLogitTolerance};
  for (const std::string& name : SubDirectories("models")) {
    SCOPED_TRACE(name);
    const auto golden = ValueOrDie(SafetensorsFile::Open(GoldenPath("models/" + name + "/golden.safetensors")));
    const std::vector<int32_t> ids = ReadIds(*golden, "input_ids");
    const std::vector<float> logits = ReadAll(*golden, "logits");
    const auto base = LoadGoldenBase("models/" + name);
    const size_t vocab = base->config.vocab;
    const auto engine =
        ValueOrDie(Engine::Create(base, {.n_threads = 2, .max_num_batched_tokens = 64, .kv_dtype = DType::kF32}));
    const std::vector<kernels::TokenLogprob> told = PromptLogprobs(*engine, ids, kTop);
    ASSERT_EQ(told.size(), (ids.size() - 1) * (1 + kTop));
    double sum = 0, expected_sum = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const kernels::TokenLogprob* row = told.data() + i * (1 + kTop);
      EXPECT_EQ(row[0].token, ids[i + 1]);
      for (size_t k = 0; k <= kTop; ++k) {
        EXPECT_NEAR(double{row[k].logprob}, ReferenceLogprob(&logits[i * vocab], vocab, row[k].token), kTolerance);
      }
      sum += double{row[0].logprob};
      expected_sum += ReferenceLogprob(&logits[i * vocab], vocab, ids[i + 1]);
    }
    EXPECT_NEAR(sum, expected_sum, 1e-3) << "the log-likelihood of the prompt";
  }
}

}  // namespace
}  // namespace df::testing
