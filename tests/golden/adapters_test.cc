#include "base/atomic_file.h"
#include "format/peft_adapter.h"
#include "golden_fixtures.h"
#include "reference_delta.h"

namespace df::testing {
namespace {

struct LoraCase {
  std::string base, name;
};

std::vector<LoraCase> LoraCases() {
  std::vector<LoraCase> cases;
  for (const std::string& base : SubDirectories("lora")) {
    for (const std::string& name : SubDirectories("lora/" + base)) cases.push_back({base, name});
  }
  return cases;
}

class GoldenLora : public ::testing::TestWithParam<LoraCase> {};

TEST_P(GoldenLora, GivesTheReferenceLogits) {
  const std::string directory = "lora/" + GetParam().base + "/" + GetParam().name;
  const Json paths = ValueOrDie(ReadJsonFile(GoldenPath(directory + "/case.json")));
  const auto golden = ValueOrDie(SafetensorsFile::Open(GoldenPath(directory + "/golden.safetensors")));
  const auto opened = PeftAdapter::Open(GoldenPath(directory + "/" + ValueOrDie(JsonString(paths, "adapter"))));
  DF_ASSERT_OK(opened);
  const std::string base_path = directory + "/" + ValueOrDie(JsonString(paths, "base"));
  ForEachTarget([&] {
    const auto base = LoadGoldenBase(base_path);
    KernelContext context(2);
    const auto variant = LoadAdapter(context, *base, **opened);
    DF_ASSERT_OK(variant);
    const AdapterSize size = ValueOrDie(MeasureAdapter(*base, **opened, nullptr));
    EXPECT_GE(size.most_bytes, (*variant)->bytes);
    EXPECT_EQ(size.vocab, (*variant)->config.vocab);
    ExpectLogits(base, variant->get(), ReadIds(*golden, "input_ids"), ReadAll(*golden, "logits"));
  });
}

INSTANTIATE_TEST_SUITE_P(Adapters, GoldenLora, ::testing::ValuesIn(LoraCases()), [](const auto& test) {
  std::string name = test.param.base + "_" + test.param.name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

// Adapters on top of 1-bit deltas.
class GoldenChild : public ::testing::TestWithParam<std::string> {};

TEST_P(GoldenChild, GivesTheReferenceLogitsOnItsParentsMemory) {
  const std::string directory = "children/" + GetParam();
  const Json spec = ValueOrDie(ReadJsonFile(GoldenPath(directory + "/case.json")));
  const std::string set = ValueOrDie(JsonString(spec, "set")), code = ValueOrDie(JsonString(spec, "code"));
  const auto golden = ValueOrDie(SafetensorsFile::Open(GoldenPath(directory + "/golden.safetensors")));
  const auto adapter = ValueOrDie(PeftAdapter::Open(GoldenPath(directory)));
  ReferenceDelta reference(set, ValueOrDie(JsonString(spec, "fine_tune")));
  ForEachTarget([&] {
    const auto base = LoadGoldenBase("deltas/" + set + "/base");
    KernelContext context(2);
    auto parent = reference.Load(context, *base, code);
    const std::string parent_digest = parent->digest;
    const uint8_t* bits = parent->layers[0].linear[0].planes[0].bits.data();
    const size_t parent_bytes = parent->bytes;
    auto child = ValueOrDie(LoadAdapter(context, *base, *adapter, std::move(parent)));
    EXPECT_EQ(child->layers[0].linear[0].planes[0].bits.data(), bits);
    EXPECT_LT(child->bytes, parent_bytes);
    EXPECT_NE(child->digest, parent_digest);
    EXPECT_NE(child->digest, ValueOrDie(adapter->Digest()));
    ExpectLogits(base, child.get(), ReadIds(*golden, "input_ids"), ReadAll(*golden, "logits"));
  });
}

INSTANTIATE_TEST_SUITE_P(Children, GoldenChild, ::testing::ValuesIn(SubDirectories("children")), [](const auto& test) {
  std::string name = test.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

// A copy of a golden directory in which one row of a tensor is zeros.
std::string WithZeroRow(const std::string& golden, const std::string& file, const std::string& tensor, size_t row) {
  namespace fs = std::filesystem;
  const fs::path copy = fs::path(::testing::TempDir()) / ("deltafold-zero-row-" + std::to_string(getpid())) / golden;
  fs::remove_all(copy);
  fs::create_directories(copy.parent_path());
  fs::copy(GoldenPath(golden), copy, fs::copy_options::recursive);
  std::string content;
  {
    const auto opened = ValueOrDie(SafetensorsFile::Open((copy / file).string()));
    const TensorView view = *opened->FindOrNull(tensor);
    const Bytes all = opened->file().bytes();
    content.assign(reinterpret_cast<const char*>(all.data()), all.size());
    const size_t row_bytes = view.bytes.size() / view.shape[0];
    const size_t first = static_cast<size_t>(view.bytes.data() - all.data()) + row * row_bytes;
    std::fill_n(content.begin() + static_cast<std::ptrdiff_t>(first), row_bytes, '\0');
  }
  DF_EXPECT_OK(WriteFileAtomically((copy / file).string(), content));
  return copy.string();
}

TEST(LoadAdapter, RefusesAnAdapterAsParent) {
  KernelContext context(1);
  const auto base = LoadGoldenBase("deltas/llama3-gqa/base");
  const auto adapter = ValueOrDie(PeftAdapter::Open(GoldenPath("children/llama3-gqa-ft0-lora")));
  const auto child = LoadAdapter(context, *base, *adapter, ValueOrDie(LoadAdapter(context, *base, *adapter)));
  ASSERT_FALSE(child.ok());
  EXPECT_EQ(child.status().code(), StatusCode::kUnsupported) << child.status().message();
}

// PEFT stores the base's own matrix beside factors of embedding and head: it must cost nothing.
TEST(LoadAdapter, HoldsNoCopyOfAnUnchangedMatrix) {
  KernelContext context(1);
  const auto base = LoadGoldenBase("models/llama3-gqa");
  const auto load = [&](const std::string& name) {
    return ValueOrDie(
        LoadAdapter(context, *base, *ValueOrDie(PeftAdapter::Open(GoldenPath("lora/llama3-gqa/" + name)))));
  };
  const auto head = load("lm-head-target");
  EXPECT_FALSE(head->head->raw || head->head->rows);
  EXPECT_FALSE(load("embedding-lora")->embedding.raw || load("embedding-lora")->embedding.rows);
  EXPECT_TRUE(load("embed-and-head-saved")->embedding.raw);
  EXPECT_EQ(load("vocabulary-grown")->config.vocab, 259U);
}

// PEFT stores a saved embedding twice where the head stays tied to it.
TEST(LoadAdapter, HoldsASavedEmbeddingOnceWhereTheHeadIsTheSame) {
  KernelContext context(1);
  const auto base = LoadGoldenBase("models/qwen2-bias-tied");
  const auto load = [&](const std::string& name) {
    return ValueOrDie(
        LoadAdapter(context, *base, *ValueOrDie(PeftAdapter::Open(GoldenPath("lora/qwen2-bias-tied/" + name)))));
  };
  const auto tied = load("embed-saved-tied"), untied = load("embed-saved");
  EXPECT_TRUE(tied->embedding.raw || tied->embedding.rows);
  EXPECT_FALSE(tied->head);
  EXPECT_TRUE(untied->head);
}

TEST(LoadAdapter, RefusesDoraOfARowWithoutLength) {
  KernelContext context(1);
  const std::string module = "model.layers.0.self_attn.q_proj";
  const std::string base_path = WithZeroRow("models/llama3-gqa", "model.safetensors", module + ".weight", 9);
  const std::string adapter_path = WithZeroRow("lora/llama3-gqa/dora", "adapter_model.safetensors",
                                               "base_model.model." + module + ".lora_B.weight", 9);
  const auto base = ValueOrDie(LoadBase(context, ValueOrDie(Checkpoint::Open(base_path))));
  const auto adapter = ValueOrDie(PeftAdapter::Open(adapter_path));
  const auto refused = LoadAdapter(context, *base, *adapter);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kCorrupt);
  for (const char* word : {"use_dora", "row 9", "q_proj"}) {
    EXPECT_NE(refused.status().message().find(word), std::string::npos) << refused.status().message();
  }
  DF_EXPECT_OK(LoadAdapter(context, *LoadGoldenBase("models/llama3-gqa"), *adapter));
}

}  // namespace
}  // namespace df::testing
