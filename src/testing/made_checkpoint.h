// Small random checkpoints for tests.
#ifndef DELTAFOLD_TESTING_MADE_CHECKPOINT_H_
#define DELTAFOLD_TESTING_MADE_CHECKPOINT_H_

#include <unistd.h>

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/atomic_file.h"
#include "base/float16.h"
#include "base/rng.h"
#include "format/safetensors.h"
#include "model/bind.h"
#include "testing/status_matchers.h"

namespace df::testing {

// A directory that is removed with its content.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    // Memory where there is some: an fsync to disk takes as long as a whole test.
    const bool has_memory = access("/dev/shm", W_OK) == 0;
    std::string pattern =
        (has_memory ? "/dev/shm" : std::filesystem::temp_directory_path().string()) + "/codec_test.XXXXXX";
    if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = pattern;
  }
  ~TemporaryDirectory() { std::filesystem::remove_all(path_); }
  std::string Sub(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

struct MadeModel {
  size_t d_model = 16, d_ff = 24, n_layers = 2, vocab = 20;
  bool tied = true;  // as the config says
  bool stores_head = false;
  DType dtype = DType::kBf16;
  uint64_t seed = 0;  // of the base's weights
  double change = 0;  // size of the differences to them; 0 = the base itself
  uint64_t change_seed = 1;
  std::map<std::string, bool> unchanged = {};  // tensors that stay the base's
};

inline std::string ConfigOf(const MadeModel& model) {
  return R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": )" +
         std::to_string(model.d_model) + R"(, "intermediate_size": )" + std::to_string(model.d_ff) +
         R"(, "num_hidden_layers": )" + std::to_string(model.n_layers) +
         R"(, "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,)" +
         R"( "max_position_embeddings": 128, "hidden_act": "silu", "tie_word_embeddings": )" +
         (model.tied ? "true" : "false") + R"(, "torch_dtype": "bfloat16", "vocab_size": )" +
         std::to_string(model.vocab) + "}";
}

// The values of a tensor, representable in bf16. Element i is the same whatever the size: a grown vocabulary shares its
// first rows.
inline std::vector<float> ValuesOf(const MadeModel& model, const std::string& name, size_t size) {
  const uint64_t tensor = std::hash<std::string>()(name);
  const double change = model.unchanged.contains(name) ? 0 : model.change;
  std::vector<float> values(size);
  for (size_t i = 0; i < size; ++i) {
    values[i] = ToFloat(ToBf16(static_cast<float>(RandomUnit(model.seed ^ tensor, i) - 0.5)));
    if (change == 0) continue;
    const double changed = static_cast<double>(values[i]) + change * (RandomUnit(model.change_seed ^ tensor, i) - 0.5);
    values[i] = ToFloat(ToBf16(static_cast<float>(changed)));
  }
  return values;
}

inline std::vector<uint8_t> StoredAs(DType dtype, const std::vector<float>& values) {
  std::vector<uint8_t> bytes(values.size() * DTypeBytes(dtype));
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t half = dtype == DType::kBf16 ? ToBf16(values[i]).bits : ToF16(values[i]).bits;
    if (dtype == DType::kF32) {
      std::memcpy(bytes.data() + i * sizeof(float), &values[i], sizeof(float));
    } else {
      std::memcpy(bytes.data() + i * sizeof(half), &half, sizeof(half));
    }
  }
  return bytes;
}

// Writes the model to `directory`; `edit` may alter a tensor's values.
inline void WriteModel(const MadeModel& model, const std::string& directory,
                       const std::function<void(const std::string&, std::vector<float>&)>& edit = {}) {
  std::filesystem::create_directories(directory);
  DF_EXPECT_OK(WriteFileAtomically(directory + "/config.json", ConfigOf(model)));
  const ModelConfig config = ValueOrDie(LoadModelConfig(directory));
  const std::vector<Slot> slots = ListSlots(config, !model.stores_head);
  std::vector<TensorSpec> specs;
  for (const Slot& slot : slots) {
    specs.push_back({slot.name, model.dtype, slot.IsVector() ? Shape{slot.d_out} : Shape{slot.d_out, slot.d_in}});
  }
  auto writer = ValueOrDie(SafetensorsWriter::Create(directory + "/model.safetensors", specs, {}));
  for (const TensorSpec& spec : specs) {
    std::vector<float> values = ValuesOf(model, spec.name, *spec.shape.TryElements());
    if (edit) edit(spec.name, values);
    DF_EXPECT_OK(writer.Write(StoredAs(spec.dtype, values)));
  }
  DF_EXPECT_OK(writer.Commit());
}

inline std::vector<float> Floats(const TensorView& view) {
  std::vector<float> values(view.elements());
  ReadFloats(view, 0, values);
  return values;
}

}  // namespace df::testing

#endif  // DELTAFOLD_TESTING_MADE_CHECKPOINT_H_
