// Checkpoints made from base and adapter, run through the model: they must answer as PEFT does.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "codec/materialize.h"
#include "format/peft_adapter.h"
#include "testing/decode.h"
#include "testing/made_checkpoint.h"

namespace df {
namespace {

using testing::TemporaryDirectory;
using testing::ValueOrDie;

const std::string kGolden = std::string(DELTAFOLD_SOURCE_DIR) + "/tests/golden/";

std::vector<std::string> AdapterCases() {
  std::vector<std::string> cases;
  for (const auto& base : std::filesystem::directory_iterator(kGolden + "lora")) {
    if (!base.is_directory()) continue;
    for (const auto& adapter : std::filesystem::directory_iterator(base.path())) {
      cases.push_back(base.path().filename().string() + "/" + adapter.path().filename().string());
    }
  }
  std::sort(cases.begin(), cases.end());
  return cases;
}

class MaterializedAdapter : public ::testing::TestWithParam<std::string> {
 protected:
  std::string home_ = kGolden + "lora/" + GetParam();
  Json paths_ = ValueOrDie(ReadJsonFile(home_ + "/case.json"));
  std::string adapter_ = home_ + "/" + ValueOrDie(JsonString(paths_, "adapter"));
  std::shared_ptr<const Checkpoint> base_ =
      ValueOrDie(Checkpoint::Open(home_ + "/" + ValueOrDie(JsonString(paths_, "base"))));
  TemporaryDirectory directory_;
  ThreadPool pool_{2};
};

TEST_P(MaterializedAdapter, GivesTheReferenceLogits) {
  const std::string full = directory_.Sub("full");
  const auto report = Materialize(pool_, *base_, adapter_, full, {.dtype = DType::kF32});
  if (GetParam() == "llama3-gqa/lora-bias") {  // the base has no biases
    ASSERT_FALSE(report.ok());
    EXPECT_EQ(report.status().code(), StatusCode::kUnsupported);
    EXPECT_NE(report.status().message().find("lora_bias"), std::string::npos) << report.status().message();
    return;
  }
  DF_ASSERT_OK(report);
  KernelContext context(2);
  const auto model = LoadBase(context, ValueOrDie(Checkpoint::Open(full)));
  DF_ASSERT_OK(model);
  const auto golden = ValueOrDie(SafetensorsFile::Open(home_ + "/golden.safetensors"));
  const TensorView* ids = golden->FindOrNull("input_ids");
  const TensorView* logits = golden->FindOrNull("logits");
  std::vector<int32_t> tokens(ids->elements());
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<int32_t>(LoadUnaligned<int64_t>(ids->bytes.data() + i * sizeof(int64_t)));
  }
  Decoder decoder(*model);
  testing::Sequence sequence(**model, nullptr, tokens.size());
  const auto rows = testing::Logits(context, decoder, sequence, tokens, kernels::Phase::kPrefill, tokens.size());
  ASSERT_EQ(rows.size() * rows[0].size(), logits->elements());
  for (size_t i = 0; i < logits->elements(); ++i) {
    // Ten times the distance of an independent float64 run, as for what is served.
    ASSERT_NEAR(rows[i / rows[0].size()][i % rows[0].size()], FloatAt(*logits, i), 1e-4F) << i;
  }
}

TEST_P(MaterializedAdapter, IsTiedWhereEmbeddingAndHeadStayTheSame) {
  const std::string full = directory_.Sub("full");
  const auto made = Materialize(pool_, *base_, adapter_, full, {});
  if (!made.ok()) {
    EXPECT_EQ(made.status().code(), StatusCode::kUnsupported)
        << "no checkpoint can hold it: " << made.status().message();
    return;
  }
  const auto checkpoint = ValueOrDie(Checkpoint::Open(full));
  const StoredTensor* head = checkpoint->FindOrNull(kHeadName);
  EXPECT_EQ(checkpoint->config().tied_head, head == nullptr);
  if (head == nullptr || !base_->config().tied_head) return;
  EXPECT_FALSE(std::ranges::equal(head->view.bytes, checkpoint->FindOrNull(kEmbeddingName)->view.bytes));
}

INSTANTIATE_TEST_SUITE_P(Adapters, MaterializedAdapter, ::testing::ValuesIn(AdapterCases()), [](const auto& test) {
  std::string name = test.param;
  for (char& c : name) c = c == '-' || c == '/' ? '_' : c;
  return name;
});

}  // namespace
}  // namespace df
