// Base, 1-bit deltas, adapters and adapters on deltas in one batch.
#include <numeric>

#include "format/peft_adapter.h"
#include "golden_fixtures.h"
#include "reference_delta.h"

namespace df::testing {
namespace {

// Every kind of variant on one base: 1-bit, adapters, adapters on a 1-bit parent.
std::vector<std::shared_ptr<const VariantWeights>> EveryKind(KernelContext& context, const BaseWeights& base) {
  const auto delta = ReferenceDelta("llama3-gqa", "ft0").Load(context, base, "row");
  std::vector<std::shared_ptr<const VariantWeights>> variants = {nullptr, delta};
  for (const std::string kind : {"lora", "dora", "embedding", "tokens"}) {
    const auto adapter = ValueOrDie(PeftAdapter::Open(GoldenPath("children/llama3-gqa-ft0-" + kind)));
    variants.push_back(ValueOrDie(LoadAdapter(context, base, *adapter)));
    variants.push_back(ValueOrDie(LoadAdapter(context, base, *adapter, delta)));
  }
  return variants;
}

// Sequences of one KV pool, fed together or alone.
struct Mixed {
  static constexpr size_t kBlocks = 2;

  Mixed(std::shared_ptr<const BaseWeights> weights, size_t n)
      : base(std::move(weights)),
        decoder(base),
        kv(base->config, {.dtype = DType::kF32, .n_blocks = n * kBlocks}),
        blocks(n * kBlocks),
        lengths(n) {
    std::iota(blocks.rbegin(), blocks.rend(), 0);
  }

  struct Part {
    size_t sequence = 0;
    const VariantWeights* variant = nullptr;
    size_t n_tokens = 0;
    kernels::Phase phase = kernels::Phase::kPrefill;
  };

  // Logits of every row, part after part.
  std::vector<std::vector<float>> Step(KernelContext& context, const std::vector<Part>& parts) {
    Batch batch;
    for (const Part& part : parts) {
      const size_t begin = batch.tokens.size();
      for (size_t i = 0; i < part.n_tokens; ++i) {
        // The trainable tokens, 5 and 17, are among them.
        batch.tokens.push_back(static_cast<int32_t>(5 + 12 * ((part.sequence + lengths[part.sequence] + i) % 9)));
        batch.logit_rows.push_back(begin + i);
      }
      batch.segments.push_back({.begin = begin,
                                .end = batch.tokens.size(),
                                .phase = part.phase,
                                .variant = part.variant,
                                .position = lengths[part.sequence],
                                .block_table = blocks.data() + part.sequence * kBlocks});
      lengths[part.sequence] += part.n_tokens;
    }
    const MatView<float> logits = decoder.Step(context, batch, kv);
    std::vector<std::vector<float>> rows;
    rows.reserve(batch.tokens.size());
    for (size_t i = 0; i < batch.tokens.size(); ++i) rows.push_back(CopyRow(logits, i, base->config.vocab));
    return rows;
  }

  std::shared_ptr<const BaseWeights> base;
  Decoder decoder;
  KvPool kv;
  std::vector<int32_t> blocks;
  std::vector<size_t> lengths;
};

// Two sequences a variant; those that decode and those that are at their prompt lie side by side.
std::vector<std::vector<Mixed::Part>> MixedSteps(const std::vector<std::shared_ptr<const VariantWeights>>& variants) {
  std::vector<std::vector<Mixed::Part>> steps(3);
  for (size_t i = 0; i < 2 * variants.size(); ++i) {
    const VariantWeights* variant = variants[i % variants.size()].get();
    const bool decodes = i % 3 != 0;
    steps[0].push_back({i, variant, 2 + i % 4, kernels::Phase::kPrefill});
    steps[1].push_back(
        {i, variant, decodes ? size_t{1} : size_t{5}, decodes ? kernels::Phase::kDecode : kernels::Phase::kPrefill});
    steps[2].push_back({i, variant, 1, kernels::Phase::kDecode});
  }
  return steps;
}

TEST(MixedBatch, OfEveryKindOfVariantEqualsEachAlone) {
  ForEachTarget([] {
    KernelContext context(2);
    const auto base = LoadGoldenBase("deltas/llama3-gqa/base");
    const auto variants = EveryKind(context, *base);
    const auto steps = MixedSteps(variants);
    Mixed together(base, steps[0].size()), alone(base, steps[0].size());
    for (const std::vector<Mixed::Part>& parts : steps) {
      const auto rows = together.Step(context, parts);
      size_t at = 0;
      for (const Mixed::Part& part : parts) {
        for (const std::vector<float>& row : alone.Step(context, {part})) {
          ASSERT_EQ(rows[at++], row) << "sequence " << part.sequence << " on " << kernels::CurrentTarget();
        }
      }
    }
  });
}

TEST(MixedBatch, VariantsOfEveryKindDiffer) {
  KernelContext context(2);
  const auto base = LoadGoldenBase("deltas/llama3-gqa/base");
  std::vector<std::vector<std::vector<float>>> answers;
  for (const auto& variant : EveryKind(context, *base)) {
    Mixed alone(base, 1);
    answers.push_back(alone.Step(context, {{0, variant.get(), 9, kernels::Phase::kPrefill}}));
  }
  for (size_t i = 0; i < answers.size(); ++i) {
    for (size_t j = 0; j < i; ++j) EXPECT_NE(answers[i], answers[j]) << i << " and " << j;
  }
}

}  // namespace
}  // namespace df::testing
