// Writes a synthetic family of a real model's shape: a base, one full fine-tune, and 1-bit deltas with random bits and
// non-zero scales. Random weights say nothing, but bytes, shapes and time are those of the real thing.
//
//   synthetic_family OUT SHAPE N_DELTAS     SHAPE: small and wide (tests), qwen3-0.6b
#include <array>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "base/atomic_file.h"
#include "base/float16.h"
#include "base/json.h"
#include "base/rng.h"
#include "format/delta_dir.h"
#include "format/safetensors.h"
#include "model/bind.h"

namespace df {
namespace {

struct ModelShape {
  size_t d_model, n_layers, n_heads, n_kv_heads, head_dim, d_ff, vocab;
};

Result<ModelShape> ShapeNamed(const std::string& name) {
  if (name == "small") return ModelShape{512, 4, 8, 4, 64, 2048, 4096};
  if (name == "wide") return ModelShape{2048, 1, 16, 4, 128, 8192, 1024};
  if (name == "qwen3-0.6b") return ModelShape{1024, 28, 16, 8, 128, 3072, 151936};
  return InvalidArgument("unknown shape " + name + "; known: small, wide, qwen3-0.6b");
}

std::string ConfigText(const ModelShape& shape) {
  const Json config = {{"architectures", {"Qwen3ForCausalLM"}},
                       {"model_type", "qwen3"},
                       {"hidden_size", shape.d_model},
                       {"num_hidden_layers", shape.n_layers},
                       {"num_attention_heads", shape.n_heads},
                       {"num_key_value_heads", shape.n_kv_heads},
                       {"head_dim", shape.head_dim},
                       {"intermediate_size", shape.d_ff},
                       {"vocab_size", shape.vocab},
                       {"max_position_embeddings", 2048},
                       {"rms_norm_eps", 1e-6},
                       {"rope_theta", 1000000.0},
                       {"tie_word_embeddings", true},
                       {"hidden_act", "silu"},
                       {"attention_bias", false},
                       {"torch_dtype", "bfloat16"}};
  return DumpJson(config, 2);
}

// Weights uniform in [-bound, bound): the variance keeps activations of order one through the layers.
constexpr float kBound = 0.05F;
constexpr size_t kPieceElements = size_t{1} << 20;

Status WriteWeights(const std::string& directory, const std::vector<Slot>& slots, uint64_t base_seed,
                    uint64_t tune_seed) {
  std::vector<TensorSpec> specs;
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
        piece[i] = ToBf16(slot.IsVector() ? 1.0F : kBound * (unit(base_seed) + change));
      }
      DF_RETURN_IF_ERROR(writer.Write(AsBytes(std::span<const Bf16>(piece.data(), size))));
    }
  }
  return writer.Commit();
}

Status WriteModel(const std::string& directory, const ModelShape& shape, const std::vector<Slot>& slots,
                  uint64_t tune_seed) {
  if (std::filesystem::exists(directory + "/model.safetensors")) return Status::Ok();
  std::filesystem::create_directories(directory);
  DF_RETURN_IF_ERROR(WriteFileAtomically(directory + "/config.json", ConfigText(shape)));
  return WriteWeights(directory, slots, 1, tune_seed);
}

Status WriteDelta(const std::string& directory, const ModelShape& shape, const std::vector<Slot>& slots,
                  const std::string& fingerprint, uint64_t seed) {
  if (std::filesystem::exists(directory)) return Status::Ok();
  DF_ASSIGN_OR_RETURN(const auto writer,
                      DeltaWriter::Create(directory, {.base_fingerprint = fingerprint, .base_name = "synthetic"}));
  std::vector<uint64_t> bits;
  std::vector<float> scales;
  for (const Slot& slot : slots) {
    if (slot.kind != SlotKind::kMatrix) continue;
    const size_t n_bytes = slot.d_out * SignRowBytes(slot.d_in);
    bits.resize((n_bytes + 7) / 8);
    for (uint64_t& word : bits) word = RandomBits(seed, static_cast<uint64_t>(&word - bits.data()));
    scales.resize(slot.d_out);
    for (size_t i = 0; i < scales.size(); ++i)
      scales[i] = 0.1F * kBound * (0.5F + static_cast<float>(RandomUnit(seed, i)));
    LinearDelta delta = {.d_out = slot.d_out, .d_in = slot.d_in};
    SignPlane plane = {.bits = {reinterpret_cast<const uint8_t*>(bits.data()), n_bytes}};
    plane.row_scale = TensorView{DType::kF32, Shape{slot.d_out}, AsBytes(std::span<const float>(scales))};
    delta.planes.push_back(plane);
    DF_RETURN_IF_ERROR(writer->AddLinear(slot.name, delta));
  }
  DF_RETURN_IF_ERROR(writer->AddFile("config.json", ConfigText(shape)));
  return writer->Commit(Json::object());
}

Status WriteFamily(const std::string& out, const std::string& shape_name, size_t n_deltas) {
  DF_ASSIGN_OR_RETURN(const ModelShape shape, ShapeNamed(shape_name));
  DF_ASSIGN_OR_RETURN(const Json config_json, ParseJson(ConfigText(shape)));
  DF_ASSIGN_OR_RETURN(const ModelConfig config, ParseModelConfig(config_json));
  const std::vector<Slot> slots = ListSlots(config, true);
  DF_RETURN_IF_ERROR(WriteModel(out + "/base", shape, slots, 0));
  DF_RETURN_IF_ERROR(WriteModel(out + "/fine-tune", shape, slots, 2));
  DF_ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::Open(out + "/base"));
  DF_ASSIGN_OR_RETURN(const BoundCheckpoint bound, Bind(*checkpoint));
  DF_ASSIGN_OR_RETURN(const std::string fingerprint, BaseFingerprint(*checkpoint, bound));
  for (size_t i = 0; i < n_deltas; ++i) {
    DF_RETURN_IF_ERROR(WriteDelta(out + "/delta-" + std::to_string(i), shape, slots, fingerprint, 100 + i));
  }
  return Status::Ok();
}

}  // namespace
}  // namespace df

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: synthetic_family OUT SHAPE N_DELTAS\n");
    return 2;
  }
  const df::Status status = df::WriteFamily(argv[1], argv[2], static_cast<size_t>(std::strtoul(argv[3], nullptr, 10)));
  if (!status.ok()) std::fprintf(stderr, "synthetic_family: %s\n", status.message().c_str());
  return status.ok() ? 0 : 1;
}
