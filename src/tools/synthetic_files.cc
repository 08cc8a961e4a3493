#include "tools/synthetic_files.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "base/atomic_file.h"
#include "base/float16.h"
#include "base/json.h"
#include "base/rng.h"
#include "format/delta_dir.h"
#include "format/safetensors.h"
#include "model/bind.h"
#include "tools/synthetic_shape.h"
#include "tools/synthetic_weights.h"

namespace df::tools {
namespace {

constexpr size_t kPieceElements = size_t{1} << 20;

// `tune_seed` 0: the base itself.
Status WriteWeights(const std::string& directory, const std::vector<Slot>& slots, uint64_t base_seed,
                    uint64_t tune_seed) {
  std::vector<TensorSpec> specs;
  specs.reserve(slots.size());
  for (const Slot& slot : slots) {
    specs.push_back({slot.name, DType::kBf16, slot.IsVector() ? Shape{slot.d_out} : Shape{slot.d_out, slot.d_in}});
  }
  DF_ASSIGN_OR_RETURN(SafetensorsWriter writer, SafetensorsWriter::Create(directory + "/model.safetensors", specs, {}));
  std::vector<Bf16> piece(kPieceElements);
  uint64_t counter = 0;
  for (const Slot& slot : slots) {
    const size_t n = slot.d_out * slot.d_in;
    for (size_t begin = 0; begin < n; begin += kPieceElements) {
      const size_t size = std::min(kPieceElements, n - begin);
      for (size_t i = 0; i < size; ++i, ++counter) {
        const auto unit = [&](uint64_t seed) {
          return static_cast<float>(RandomBits(seed, counter) >> 40) * 0x1.0p-23F - 1.0F;
        };
        // The embedding is shared, so that the deltas are of the matrices alone.
        const float change = tune_seed != 0 && slot.kind == SlotKind::kMatrix ? 0.2F * unit(tune_seed) : 0.0F;
        piece[i] = ToBf16(slot.IsVector() ? 1.0F : kSyntheticBound * (unit(base_seed) + change));
      }
      DF_RETURN_IF_ERROR(writer.Write(AsBytes(std::span<const Bf16>(piece.data(), size))));
    }
  }
  return writer.Commit();
}

Status WriteModel(const std::string& directory, const std::string& config, const std::vector<Slot>& slots,
                  uint64_t tune_seed) {
  if (std::filesystem::exists(directory + "/model.safetensors")) return Status::Ok();
  std::filesystem::create_directories(directory);
  DF_RETURN_IF_ERROR(WriteFileAtomically(directory + "/config.json", config));
  return WriteWeights(directory, slots, 1, tune_seed);
}

Status WriteDelta(const std::string& directory, const std::string& config, const std::vector<Slot>& slots,
                  const std::string& fingerprint, uint64_t seed) {
  if (std::filesystem::exists(directory)) return Status::Ok();
  DF_ASSIGN_OR_RETURN(const auto writer,
                      DeltaWriter::Create(directory, {.base_fingerprint = fingerprint, .base_name = "synthetic"}));
  SyntheticDelta delta;
  for (const Slot& slot : slots) {
    if (slot.kind != SlotKind::kMatrix) continue;
    DF_RETURN_IF_ERROR(writer->AddLinear(slot.name, delta.Make(slot.d_out, slot.d_in, seed)));
  }
  DF_RETURN_IF_ERROR(writer->AddFile("config.json", config));
  return writer->Commit(Json::object());
}

}  // namespace

Status WriteSyntheticFamily(const std::string& directory, const std::string& shape_name, size_t n_deltas) {
  DF_ASSIGN_OR_RETURN(const Json config_json, SyntheticConfig(shape_name));
  DF_ASSIGN_OR_RETURN(const ModelConfig config, ParseModelConfig(config_json));
  const std::string config_text = DumpJson(config_json, 2);
  const std::vector<Slot> slots = ListSlots(config, config.tied_head);
  DF_RETURN_IF_ERROR(WriteModel(directory + "/base", config_text, slots, 0));
  DF_RETURN_IF_ERROR(WriteModel(directory + "/fine-tune", config_text, slots, 2));
  DF_ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::Open(directory + "/base"));
  DF_ASSIGN_OR_RETURN(const BoundCheckpoint bound, Bind(*checkpoint));
  DF_ASSIGN_OR_RETURN(const std::string fingerprint, BaseFingerprint(*checkpoint, bound));
  for (size_t i = 0; i < n_deltas; ++i) {
    const std::string delta = directory + "/delta-" + std::to_string(i);
    DF_RETURN_IF_ERROR(WriteDelta(delta, config_text, slots, fingerprint, 100 + i));
  }
  return Status::Ok();
}

}  // namespace df::tools
