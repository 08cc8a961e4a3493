// The reference's 1-bit deltas as delta directories.
#ifndef DELTAFOLD_TESTS_GOLDEN_REFERENCE_DELTA_H_
#define DELTAFOLD_TESTS_GOLDEN_REFERENCE_DELTA_H_

#include <unistd.h>

#include <memory>
#include <string>

#include "format/delta_dir.h"
#include "golden_fixtures.h"

namespace df::testing {

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
    const std::string directory =
        ::testing::TempDir() + "deltafold-reference-delta-" + std::to_string(getpid()) + "-" + code;
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

}  // namespace df::testing

#endif  // DELTAFOLD_TESTS_GOLDEN_REFERENCE_DELTA_H_
