#include <set>

#include "format/delta_dir.h"
#include "format/peft_adapter.h"
#include "golden_fixtures.h"

namespace df::testing {
namespace {

// A delta directory made from the reference's own bits and scales, so that loading and serving are tested apart from
// encoding.
class ReferenceDelta {
 public:
  ReferenceDelta(const std::string& set, const std::string& fine_tune)
      : base_checkpoint_(ValueOrDie(Checkpoint::Open(GoldenPath("deltas/" + set + "/base")))),
        fine_tune_(ValueOrDie(Checkpoint::Open(GoldenPath("deltas/" + set + "/" + fine_tune)))),
        reference_(ValueOrDie(
            SafetensorsFile::Open(GoldenPath("deltas/" + set + "/" + fine_tune + "/reference.safetensors")))) {}

  const SafetensorsFile& reference() const { return *reference_; }

  std::shared_ptr<const VariantWeights> Load(KernelContext& context, const BaseWeights& base, const std::string& code) {
    const std::string directory = ::testing::TempDir() + "deltafold-reference-delta-" + code;
    const BoundCheckpoint bound = ValueOrDie(Bind(*fine_tune_));
    auto writer = ValueOrDie(
        DeltaWriter::Create(directory, {.base_fingerprint = base.fingerprint, .base_name = "base", .replace = true}));
    for (const Slot& slot : bound.slots) Write(*writer, slot, code);
    writer->AddFile("config.json", ValueOrDie(ReadFileBounded(fine_tune_->directory() + "/config.json", 1 << 20))).ok();
    const Status committed = writer->Commit(Json::object());
    if (!committed.ok()) throw std::runtime_error(committed.message());
    const auto delta = ValueOrDie(DeltaDirectory::Open(directory));
    DF_EXPECT_OK(delta->VerifyDigest());
    return ValueOrDie(LoadDelta(context, base, *delta));
  }

 private:
  const TensorView& Reference(const std::string& name) { return *reference_->FindOrNull(name); }

  void Write(DeltaWriter& writer, const Slot& slot, const std::string& code) {
    LinearDelta delta = {.d_out = slot.d_out, .d_in = slot.d_in};
    if (slot.kind == SlotKind::kMatrix) {
      delta.planes.push_back(FirstPlane(slot.name, code));
      if (code.starts_with("plane2")) delta.planes.push_back(SecondPlane(slot.name, code));
      DF_EXPECT_OK(writer.AddLinear(slot.name, delta));
      return;
    }
    const TensorView& view = fine_tune_->FindOrNull(slot.name)->view;
    DF_EXPECT_OK(writer.Add(slot.name, view.dtype, view.shape, view.bytes));
  }

  SignPlane FirstPlane(const std::string& name, const std::string& code) {
    SignPlane plane = {.bits = Reference(name + ".bits").bytes};
    if (code == "scalar" || code == "plane2_scalar") {
      plane.scale = FloatAt(Reference(name + ".alpha"), 0);
    } else if (code == "rank1") {
      plane.row_scale = Reference(name + ".rank1_u");
      plane.col_scale = Reference(name + ".rank1_v");
    } else {
      plane.row_scale = Reference(name + ".alpha_row");
    }
    return plane;
  }

  SignPlane SecondPlane(const std::string& name, const std::string& code) {
    SignPlane plane = {.bits = Reference(name + "." + code + "_bits").bytes};
    if (code == "plane2_scalar") {
      plane.scale = FloatAt(Reference(name + ".plane2_scalar_alpha"), 0);
    } else {
      plane.row_scale = Reference(name + ".plane2_row_alpha");
    }
    return plane;
  }

  std::shared_ptr<const Checkpoint> base_checkpoint_;
  std::shared_ptr<const Checkpoint> fine_tune_;
  std::shared_ptr<const SafetensorsFile> reference_;
};

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

// Adapters that change more than plain low-rank pairs: refused by name, never served wrongly.
bool IsRefused(const std::string& name) {
  static const std::set<std::string> kRefused = {"bias-lora-only",  "dora",      "embedding-lora",
                                                 "lm-head-target",  "lora-bias", "modules-to-save-lm-head",
                                                 "trainable-tokens"};
  return kRefused.contains(name);
}

class GoldenLora : public ::testing::TestWithParam<LoraCase> {};

TEST_P(GoldenLora, GivesTheReferenceLogitsOrIsRefusedByName) {
  const std::string directory = "lora/" + GetParam().base + "/" + GetParam().name;
  const Json paths = ValueOrDie(ReadJsonFile(GoldenPath(directory + "/case.json")));
  const auto golden = ValueOrDie(SafetensorsFile::Open(GoldenPath(directory + "/golden.safetensors")));
  const auto opened = PeftAdapter::Open(GoldenPath(directory + "/" + ValueOrDie(JsonString(paths, "adapter"))));
  if (IsRefused(GetParam().name)) {
    ASSERT_FALSE(opened.ok());
    EXPECT_EQ(opened.status().code(), StatusCode::kUnsupported) << opened.status().message();
    return;
  }
  DF_ASSERT_OK(opened);
  const std::string base_path = directory + "/" + ValueOrDie(JsonString(paths, "base"));
  ForEachTarget([&] {
    const auto base = LoadGoldenBase(base_path);
    KernelContext context(2);
    const auto variant = LoadAdapter(context, *base, **opened);
    DF_ASSERT_OK(variant);
    ExpectLogits(base, variant->get(), ReadIds(*golden, "input_ids"), ReadAll(*golden, "logits"));
  });
}

INSTANTIATE_TEST_SUITE_P(Adapters, GoldenLora, ::testing::ValuesIn(LoraCases()), [](const auto& test) {
  std::string name = test.param.base + "_" + test.param.name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace df::testing
