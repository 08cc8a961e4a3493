#include "golden_fixtures.h"

namespace df::testing {
namespace {

class GoldenModel : public ::testing::TestWithParam<std::string> {};

TEST_P(GoldenModel, GivesTheReferenceLogitsOnEveryTargetAndPath) {
  const std::string directory = "models/" + GetParam();
  const auto golden = ValueOrDie(SafetensorsFile::Open(GoldenPath(directory + "/golden.safetensors")));
  const std::vector<int32_t> ids = ReadIds(*golden, "input_ids");
  const std::vector<float> expected = ReadAll(*golden, "logits");
  ForEachTarget([&] { ExpectLogits(LoadGoldenBase(directory), nullptr, ids, expected); });
}

TEST_P(GoldenModel, ContinuesGreedilyAsTheReferenceDoes) {
  const std::string directory = "models/" + GetParam();
  const auto golden = ValueOrDie(SafetensorsFile::Open(GoldenPath(directory + "/golden.safetensors")));
  const std::vector<int32_t> ids = ReadIds(*golden, "input_ids");
  const std::vector<int32_t> greedy = ReadIds(*golden, "greedy");
  ForEachTarget([&] {
    const auto base = LoadGoldenBase(directory);
    KernelContext context(2);
    Decoder decoder(base);
    Sequence sequence(*base, nullptr, ids.size() + greedy.size());
    std::vector<int32_t> got = {ArgMax(Feed(context, decoder, sequence, ids, kernels::Phase::kPrefill).back())};
    while (got.size() < greedy.size()) {
      got.push_back(ArgMax(Feed(context, decoder, sequence, {&got.back(), 1}, kernels::Phase::kDecode).back()));
    }
    EXPECT_EQ(got, greedy);
  });
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenModel, ::testing::ValuesIn(SubDirectories("models")), [](const auto& test) {
  std::string name = test.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace df::testing
