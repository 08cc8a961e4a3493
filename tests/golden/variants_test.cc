#include "golden_fixtures.h"
#include "reference_delta.h"

namespace df::testing {
namespace {

struct DeltaCase {
  std::string set, fine_tune;
};

std::vector<DeltaCase> DeltaCases() {
  std::vector<DeltaCase> cases;
  for (const std::string& set : SubDirectories("deltas")) {
    if (set == "linear") continue;
    for (const std::string& name : SubDirectories("deltas/" + set)) {
      if (name != "base") cases.push_back({set, name});
    }
  }
  return cases;
}

class GoldenDelta : public ::testing::TestWithParam<DeltaCase> {};

TEST_P(GoldenDelta, GivesTheReferenceLogitsForEveryCode) {
  const auto& [set, fine_tune] = GetParam();
  ReferenceDelta reference(set, fine_tune);
  const std::vector<int32_t> ids = ReadIds(reference.reference(), "input_ids");
  ForEachTarget([&] {
    const auto base = LoadGoldenBase("deltas/" + set + "/base");
    ExpectLogits(base, nullptr, ids, ReadAll(reference.reference(), "logits_base"));
    for (const std::string code : {"scalar", "row", "rank1", "plane2_scalar", "plane2_row"}) {
      SCOPED_TRACE(code);
      KernelContext context(2);
      const auto variant = reference.Load(context, *base, code);
      ExpectLogits(base, variant.get(), ids, ReadAll(reference.reference(), "logits_" + code));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Deltas, GoldenDelta, ::testing::ValuesIn(DeltaCases()), [](const auto& test) {
  std::string name = test.param.set + "_" + test.param.fine_tune;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace df::testing
