// A family of models small enough for every test, written to a temporary directory: a Llama with random weights, a
// byte-level tokenizer, 1-bit deltas and LoRA adapters. What it says is noise, but always the same noise.
#ifndef DELTAFOLD_TESTING_TINY_FAMILY_H_
#define DELTAFOLD_TESTING_TINY_FAMILY_H_

#include <cmath>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "base/atomic_file.h"
#include "base/float16.h"
#include "base/json.h"
#include "base/rng.h"
#include "format/delta_dir.h"
#include "format/safetensors.h"
#include "model/bind.h"
#include "testing/status_matchers.h"

namespace df::testing {

// A directory that is removed with all that is in it.
class TemporaryDirectory {
 public:
  explicit TemporaryDirectory(const std::string& name)
      : path_(std::filesystem::temp_directory_path() / (name + "-" + std::to_string(getpid()))) {
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~TemporaryDirectory() { std::filesystem::remove_all(path_); }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  std::string operator/(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

inline constexpr size_t kTinyVocab = 260;  // 256 bytes and four control tokens
inline constexpr int32_t kTinyEos = 257;
inline constexpr size_t kTinyPositions = 256;

inline void WriteText(const std::string& path, const std::string& content) {
  const Status status = WriteFileAtomically(path, content);
  if (!status.ok()) throw std::runtime_error(status.message());
}

// Numbers as good as normal: the sum of twelve uniform draws.
class Noise {
 public:
  explicit Noise(uint64_t seed) : seed_(seed) {}
  double Next() {
    double sum = -6.0;
    for (int i = 0; i < 12; ++i) sum += RandomUnit(seed_, k_++);
    return sum;
  }
  std::vector<float> Floats(size_t n, double scale, double mean = 0.0) {
    std::vector<float> values(n);
    for (float& value : values) value = static_cast<float>(mean + scale * Next());
    return values;
  }
  std::vector<uint8_t> Bytes(size_t n) {
    std::vector<uint8_t> values(n);
    for (uint8_t& value : values) value = static_cast<uint8_t>(RandomBits(seed_, k_++));
    return values;
  }

 private:
  uint64_t seed_;
  uint64_t k_ = 0;
};

inline std::string TinyConfig() {
  return R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 260,
    "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
    "tie_word_embeddings": false, "eos_token_id": 257, "bos_token_id": 256, "torch_dtype": "bfloat16",
    "attention_bias": false, "mlp_bias": false})";
}

inline ModelConfig ParsedTinyConfig() { return ValueOrDie(ParseModelConfig(ValueOrDie(ParseJson(TinyConfig())))); }

// The byte-level alphabet of GPT-2: printable bytes stand for themselves, the others follow from U+0100 on.
inline std::vector<std::string> ByteAlphabet() {
  std::vector<std::string> alphabet(256);
  int next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    const int code = printable ? byte : next++;
    std::string& text = alphabet[static_cast<size_t>(byte)];
    if (code < 128) {
      text = static_cast<char>(code);
    } else {
      text = {static_cast<char>(0xC0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3F))};
    }
  }
  return alphabet;
}

// Byte b is token b; then <bos> 256, <eos> 257, <user> 258, <assistant> 259.
inline void WriteTinyText(const std::string& directory) {
  Json vocab = Json::object();
  const std::vector<std::string> alphabet = ByteAlphabet();
  for (size_t byte = 0; byte < 256; ++byte) vocab[alphabet[byte]] = byte;
  Json added = Json::array();
  const std::vector<std::string> control = {"<bos>", "<eos>", "<user>", "<assistant>"};
  for (size_t i = 0; i < control.size(); ++i) {
    vocab[control[i]] = 256 + i;
    added.push_back({{"id", 256 + i},
                     {"content", control[i]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  const Json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
  const Json model = {{"type", "BPE"},
                      {"dropout", nullptr},
                      {"unk_token", nullptr},
                      {"continuing_subword_prefix", nullptr},
                      {"end_of_word_suffix", nullptr},
                      {"fuse_unk", false},
                      {"byte_fallback", false},
                      {"vocab", vocab},
                      {"merges", Json::array()}};
  const Json tokenizer = {{"version", "1.0"},          {"truncation", nullptr}, {"padding", nullptr},
                          {"added_tokens", added},     {"normalizer", nullptr}, {"pre_tokenizer", byte_level},
                          {"post_processor", nullptr}, {"decoder", byte_level}, {"model", model}};
  WriteText(directory + "/tokenizer.json", DumpJson(tokenizer));
  WriteText(directory + "/tokenizer_config.json", R"({"bos_token": "<bos>", "eos_token": "<eos>"})");
  WriteText(directory + "/chat_template.jinja",
            "<bos>{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
            "{% if add_generation_prompt %}<assistant>{% endif %}");
}

inline void WriteTinyBase(const std::string& directory, uint64_t seed) {
  std::filesystem::create_directories(directory);
  WriteText(directory + "/config.json", TinyConfig());
  WriteTinyText(directory);
  const std::vector<Slot> slots = ListSlots(ParsedTinyConfig(), false);
  std::vector<TensorSpec> specs;
  specs.reserve(slots.size());
  for (const Slot& slot : slots) {
    specs.push_back({slot.name, DType::kBf16, slot.IsVector() ? Shape{slot.d_out} : Shape{slot.d_out, slot.d_in}});
  }
  SafetensorsWriter writer = ValueOrDie(SafetensorsWriter::Create(directory + "/model.safetensors", specs, {}));
  Noise noise(seed);
  for (const Slot& slot : slots) {
    // Logits of standard deviation about 4: sampling and greedy differ, and no argmax is close to a tie.
    const double scale = slot.IsVector() ? 0.1 : (slot.kind == SlotKind::kHead ? 0.5 : 2.0 / std::sqrt(slot.d_in));
    std::vector<Bf16> values;
    for (const float f : noise.Floats(slot.d_out * slot.d_in, scale, slot.IsVector() ? 1.0 : 0.0)) {
      values.push_back(ToBf16(f));
    }
    DF_EXPECT_OK(writer.Write(AsBytes(std::span<const Bf16>(values))));
  }
  DF_EXPECT_OK(writer.Commit());
}

// Signs with a scale a row for every matrix of the layers, new norms, and one embedding row.
inline void WriteTinyDelta(const std::string& directory, const std::string& base_directory, uint64_t seed) {
  const auto checkpoint = ValueOrDie(Checkpoint::Open(base_directory));
  const BoundCheckpoint bound = ValueOrDie(Bind(*checkpoint));
  const std::string fingerprint = ValueOrDie(BaseFingerprint(*checkpoint, bound));
  const auto writer =
      ValueOrDie(DeltaWriter::Create(directory, {.base_fingerprint = fingerprint, .base_name = "tiny"}));
  Noise noise(seed);
  for (const Slot& slot : bound.slots) {
    if (slot.IsVector()) {
      const std::vector<float> norm = noise.Floats(slot.d_out, 0.1, 1.0);
      DF_EXPECT_OK(writer->Add(slot.name, DType::kF32, {slot.d_out}, AsBytes(std::span<const float>(norm))));
    } else if (slot.kind == SlotKind::kMatrix) {
      std::vector<uint8_t> bits = noise.Bytes(slot.d_out * SignRowBytes(slot.d_in));
      std::vector<float> scales = noise.Floats(slot.d_out, 0.02, 0.06);
      const TensorView rows{
          .dtype = DType::kF32, .shape = {slot.d_out}, .bytes = AsBytes(std::span<const float>(scales))};
      LinearDelta delta{.d_out = slot.d_out, .d_in = slot.d_in};
      delta.planes.push_back({.bits = bits, .scale = 1.0F, .row_scale = rows});
      DF_EXPECT_OK(writer->AddLinear(slot.name, delta));
    }
  }
  DF_EXPECT_OK(writer->AddFile("config.json", TinyConfig()));
  DF_EXPECT_OK(writer->Commit(Json::object()));
}

// Rank 4 on q and v of every layer; `broken` makes the last value layer overflow: finite weights that give no number.
struct TinyAdapterOptions {
  uint64_t seed = 0;
  bool broken = false;
};
inline void WriteTinyAdapter(const std::string& directory, TinyAdapterOptions options) {
  std::filesystem::create_directories(directory);
  WriteText(directory + "/adapter_config.json", R"({"peft_type": "LORA", "r": 4, "lora_alpha": )" +
                                                    std::string(options.broken ? "8e6" : "8") +
                                                    R"(, "target_modules": ["q_proj", "v_proj"], "bias": "none",
               "task_type": "CAUSAL_LM", "base_model_name_or_path": "tiny"})");
  std::vector<TensorSpec> specs;
  for (const BaseModule& module : ListLinearModules(ParsedTinyConfig())) {
    if (!module.path.ends_with("q_proj") && !module.path.ends_with("v_proj")) continue;
    specs.push_back({"base_model.model." + module.path + ".lora_A.weight", DType::kF32, {4, module.d_in}});
    specs.push_back({"base_model.model." + module.path + ".lora_B.weight", DType::kF32, {module.d_out, 4}});
  }
  SafetensorsWriter writer = ValueOrDie(SafetensorsWriter::Create(directory + "/adapter_model.safetensors", specs, {}));
  Noise noise(options.seed);
  for (const TensorSpec& spec : specs) {
    std::vector<float> values = noise.Floats(*spec.shape.TryElements(), 0.2);
    if (options.broken && &spec == &specs.back()) values.back() = std::numeric_limits<float>::max();
    DF_EXPECT_OK(writer.Write(AsBytes(std::span<const float>(values))));
  }
  DF_EXPECT_OK(writer.Commit());
}

}  // namespace df::testing

#endif  // DELTAFOLD_TESTING_TINY_FAMILY_H_
