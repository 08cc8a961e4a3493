// A base whose weights stay in its mapped files.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "engine/engine.h"
#include "engine/engine_fixture.h"
#include "kernels/target.h"
#include "testing/decode.h"

namespace df {
namespace {

using testing::Outcome;

struct MappedFamily {
  MappedFamily() : directory("deltafold-mapped") {
    testing::WriteTinyBase(directory / "base", 1);
    testing::WriteTinyDelta(directory / "delta", directory / "base", 2);
    testing::WriteTinyAdapter(directory / "adapter", {.seed = 4});
    in_ram = Load(WeightMemory::kRam);
    mapped = Load(WeightMemory::kMapped);
    for (const std::string name : {"delta", "adapter"}) {
      variants.push_back(testing::ValueOrDie(LoadVariantWeights(context, *mapped, directory / name)));
    }
  }

  std::shared_ptr<const BaseWeights> Load(WeightMemory memory) {
    return testing::ValueOrDie(LoadBase(context, testing::ValueOrDie(Checkpoint::Open(directory / "base")), memory));
  }

  testing::TemporaryDirectory directory;
  KernelContext context{2};
  std::shared_ptr<const BaseWeights> in_ram, mapped;
  std::vector<std::shared_ptr<const VariantWeights>> variants{nullptr};
};

std::vector<std::vector<float>> LogitsOf(KernelContext& context, const std::shared_ptr<const BaseWeights>& base,
                                         const VariantWeights* variant, kernels::Phase phase) {
  const std::vector<int32_t> tokens = {3, 1, 200, 17, 17, 90, 255, 0, 42, 11, 12};
  Decoder decoder(base);
  testing::Sequence sequence(*base, variant, tokens.size());
  return testing::Logits(context, decoder, sequence, tokens, phase, phase == kernels::Phase::kDecode ? 1 : 8);
}

TEST(MappedBase, GivesTheLogitsOfOneInMemoryBitForBit) {
  MappedFamily family;
  EXPECT_LE(family.mapped->bytes, family.in_ram->bytes) << "no padding";
  EXPECT_GT(family.mapped->mapped_bytes, family.mapped->bytes / 2);
  EXPECT_EQ(family.in_ram->mapped_bytes, 0u);
  for (const std::string& target : kernels::AvailableTargets()) {
    ASSERT_TRUE(kernels::SetTarget(target).ok());
    for (const auto& variant : family.variants) {
      for (const kernels::Phase phase : {kernels::Phase::kDecode, kernels::Phase::kPrefill}) {
        EXPECT_EQ(LogitsOf(family.context, family.mapped, variant.get(), phase),
                  LogitsOf(family.context, family.in_ram, variant.get(), phase))
            << target;
      }
    }
  }
  ASSERT_TRUE(kernels::SetTarget("auto").ok());
}

GenerationRequest Request(const std::string& id) {
  GenerationRequest request;
  request.id = id;
  request.prompt = {1, 2, 3, 4, 5};
  request.params.temperature = 0.0;
  request.params.max_tokens = 20;
  request.params.ignore_eos = true;
  request.events = std::make_shared<EventQueue>();
  return request;
}

TEST(MappedBase, FailsRequestsAndNotTheProcessOnceItsFileIsCutShort) {
  MappedFamily family;
  const auto engine = testing::ValueOrDie(Engine::Create(family.mapped, {.n_threads = 2}));
  const GenerationRequest before = Request("before");
  DF_EXPECT_OK(engine->Submit(before));
  const Outcome whole = testing::Await(*before.events);
  EXPECT_EQ(whole.tokens.size(), 20u);
  EXPECT_TRUE(engine->Healthy());

  const std::string file = family.directory / "base" + "/model.safetensors";
  ASSERT_EQ(truncate(file.c_str(), static_cast<off_t>(std::filesystem::file_size(file) / 2)), 0);
  for (const std::string id : {"under way", "later"}) {
    const GenerationRequest request = Request(id);
    DF_EXPECT_OK(engine->Submit(request));
    const Outcome outcome = testing::Await(*request.events);
    EXPECT_EQ(outcome.finish, FinishReason::kError);
    EXPECT_TRUE(outcome.tokens.empty()) << "no token comes from pages that were lost";
    EXPECT_EQ(outcome.status.code(), StatusCode::kIo);
    EXPECT_NE(outcome.status.message().find("model.safetensors was truncated"), std::string::npos)
        << outcome.status.message();
  }
  EXPECT_FALSE(engine->Healthy());
  EXPECT_EQ(testing::IdleStats(*engine).kv_blocks_used, 0u);
}

}  // namespace
}  // namespace df
