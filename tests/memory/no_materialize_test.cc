// A variant's matrix never exists in memory: neither while it is loaded nor while it answers. The model of this test
// has matrices of 32 MB, so that a single one, even for a moment, stands out in the process's peak.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "base/atomic_file.h"
#include "format/delta_dir.h"
#include "format/peft_adapter.h"
#include "kernels/target.h"
#include "testing/decode.h"
#include "testing/process_memory.h"
#include "testing/status_matchers.h"

namespace df {
namespace {

using testing::StatusBytes;

constexpr size_t kMatrixBytes = size_t{8192} * 2048 * 2;  // bf16; twice that in f32
// Allocator slack and what the loaders hold beside the delta itself; a third of one matrix.
constexpr size_t kSlackBytes = kMatrixBytes / 3;

void Step(KernelContext& context, Decoder& decoder, testing::Sequence& sequence) {
  const std::vector<int32_t> prompt(40, 7);
  testing::Feed(context, decoder, sequence, prompt, kernels::Phase::kPrefill);
  testing::Feed(context, decoder, sequence, {prompt.data(), 1}, kernels::Phase::kDecode);
}

TEST(Memory, NoMatrixOfAVariantIsEverMaterialized) {
  const char* family = std::getenv("DELTAFOLD_WIDE_FAMILY");
  ASSERT_NE(family, nullptr) << "directory written by: synthetic_family DIR wide 3";
  KernelContext context(2);
  const auto checkpoint = testing::ValueOrDie(Checkpoint::Open(std::string(family) + "/base"));
  const auto base = testing::ValueOrDie(LoadBase(context, checkpoint));
  Decoder decoder(base);
  testing::Sequence warm_up(*base, nullptr, 64);
  Step(context, decoder, warm_up);  // activations and scratch grow to their size
  std::vector<std::shared_ptr<const VariantWeights>> variants;

  testing::ResetPeak();
  const size_t before = StatusBytes("VmRSS");
  ASSERT_LT(StatusBytes("VmHWM"), before + kSlackBytes) << "the peak can be reset";
  size_t deltas = 0;
  for (size_t i = 0; i < 3; ++i) {
    const auto delta = testing::ValueOrDie(DeltaDirectory::Open(std::string(family) + "/delta-" + std::to_string(i)));
    variants.push_back(testing::ValueOrDie(LoadDelta(context, *base, *delta)));
    deltas += variants.back()->bytes;
    testing::Sequence sequence(*base, variants.back().get(), 64);
    Step(context, decoder, sequence);
  }
  EXPECT_LT(StatusBytes("VmHWM"), before + deltas + kSlackBytes);
}

// A DoRA adapter of every projection, all factors and magnitudes the same.
std::shared_ptr<const PeftAdapter> MakeDora(const std::string& directory, const ModelConfig& config) {
  constexpr size_t kRank = 8;
  std::vector<TensorSpec> specs;
  for (const BaseModule& module : ListLinearModules(config)) {
    const std::string name = "base_model.model." + module.path;
    specs.push_back({name + ".lora_A.weight", DType::kF32, {kRank, module.d_in}});
    specs.push_back({name + ".lora_B.weight", DType::kF32, {module.d_out, kRank}});
    specs.push_back({name + ".lora_magnitude_vector", DType::kF32, {module.d_out}});
  }
  std::filesystem::create_directories(directory);
  DF_EXPECT_OK(WriteFileAtomically(directory + "/adapter_config.json", R"({"peft_type":"LORA","r":8,"lora_alpha":8,
    "use_dora":true,"target_modules":"all-linear"})"));
  const std::string file = directory + "/adapter_model.safetensors";
  std::filesystem::remove(file);
  auto writer = testing::ValueOrDie(SafetensorsWriter::Create(file, specs, {}));
  for (const TensorSpec& spec : specs) {
    const std::vector<float> values(*spec.shape.TryElements(), 0.01F);
    DF_EXPECT_OK(writer.Write(AsBytes(std::span<const float>(values))));
  }
  DF_EXPECT_OK(writer.Commit());
  return testing::ValueOrDie(PeftAdapter::Open(directory));
}

TEST(Memory, AChildHoldsItsFactorsAndDoraNeedsNoMatrix) {
  const char* family = std::getenv("DELTAFOLD_WIDE_FAMILY");
  ASSERT_NE(family, nullptr);
  KernelContext context(2);
  const auto checkpoint = testing::ValueOrDie(Checkpoint::Open(std::string(family) + "/base"));
  const auto base = testing::ValueOrDie(LoadBase(context, checkpoint));
  const auto delta = testing::ValueOrDie(DeltaDirectory::Open(std::string(family) + "/delta-0"));
  const auto parent = testing::ValueOrDie(LoadDelta(context, *base, *delta));
  const auto adapter = MakeDora(::testing::TempDir() + "deltafold-wide-dora-" + std::to_string(getpid()), base->config);
  const uint64_t file_bytes = adapter->file().file().bytes().size();

  testing::ResetPeak();
  const size_t before = StatusBytes("VmRSS");
  const auto alone = testing::ValueOrDie(LoadAdapter(context, *base, *adapter));
  const auto child = testing::ValueOrDie(LoadAdapter(context, *base, *adapter, parent));
  // The mapped file, two variants.
  EXPECT_LT(StatusBytes("VmHWM"), before + file_bytes + alone->bytes + child->bytes + kSlackBytes);
  EXPECT_LT(alone->bytes, file_bytes * 101 / 100);
  EXPECT_EQ(child->bytes, alone->bytes);
}

TEST(Memory, VariantsHoldWhatTheirFilesHold) {
  const char* family = std::getenv("DELTAFOLD_WIDE_FAMILY");
  ASSERT_NE(family, nullptr);
  KernelContext context(1);
  const auto checkpoint = testing::ValueOrDie(Checkpoint::Open(std::string(family) + "/base"));
  const auto base = testing::ValueOrDie(LoadBase(context, checkpoint));
  EXPECT_LT(base->bytes, checkpoint->weight_bytes() * 101 / 100);
  const auto delta = testing::ValueOrDie(DeltaDirectory::Open(std::string(family) + "/delta-0"));
  const auto variant = testing::ValueOrDie(LoadDelta(context, *base, *delta));
  EXPECT_LT(variant->bytes, delta->stored_bytes() * 101 / 100);
}

}  // namespace
}  // namespace df
