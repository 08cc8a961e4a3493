// config.json of a supported decoder (Llama, Mistral, Qwen2, Qwen3) in both dialects: 4.x (rope_theta, rope_scaling,
// torch_dtype) and 5.x (rope_parameters, dtype). Anything that would change the computation and is not supported is
// refused by name, never approximated; auto_map is never executed.
#ifndef DELTAFOLD_FORMAT_MODEL_CONFIG_H_
#define DELTAFOLD_FORMAT_MODEL_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json_fwd.h"
#include "base/status.h"
#include "tensor/dtype.h"

namespace df {

enum class Architecture { kLlama, kMistral, kQwen2, kQwen3 };

struct RopeConfig {
  enum class Kind { kDefault, kLinear, kLlama3, kYarn, kDynamic };
  Kind kind = Kind::kDefault;
  double theta = 10000.0;
  double factor = 1.0;
  double low_freq_factor = 1.0;                  // llama3
  double high_freq_factor = 4.0;                 // llama3
  double original_max_positions = 0;             // llama3, yarn, dynamic
  std::optional<double> attention_factor;        // yarn
  std::optional<double> mscale, mscale_all_dim;  // yarn
  double beta_fast = 32.0, beta_slow = 1.0;      // yarn
  bool truncate = true;                          // yarn
  bool operator==(const RopeConfig&) const = default;
};

struct ModelConfig {
  Architecture architecture = Architecture::kLlama;
  std::string model_type;
  size_t d_model = 0, n_layers = 0, n_heads = 0, n_kv_heads = 0, head_dim = 0, d_ff = 0, vocab = 0;
  double rms_eps = 1e-6;
  RopeConfig rope;
  size_t max_positions = 0;  // what may be served: for dynamic RoPE at most the original length
  bool tied_head = false;    // config's word; a stored lm_head wins (80-reference facts: bind decides)
  bool qkv_bias = false, o_bias = false, mlp_bias = false, qk_norm = false;
  std::vector<size_t> window;    // [n_layers] sliding window in tokens, 0 = unlimited
  std::vector<int32_t> eos_ids;  // of config.json; generation_config.json may add (LoadGenerationConfig)
  std::optional<int32_t> bos_id;
  std::optional<DType> dtype;  // as declared; the stored tensors decide
};

// The only errors are kInvalidArgument (a value out of range, missing) and kUnsupported (named feature).
Result<ModelConfig> ParseModelConfig(const Json& config);
Result<ModelConfig> LoadModelConfig(const std::string& directory);

// Inverse frequencies [head_dim / 2], computed as the reference does (f32 powers where it uses them), and the factor on
// cos and sin.
struct RopeFrequencies {
  std::vector<float> inv_freq;
  float magnitude = 1.0F;
};
RopeFrequencies ComputeRopeFrequencies(const RopeConfig& rope, size_t head_dim);

// What generation_config.json says that we honour as defaults; absent file = empty.
struct GenerationDefaults {
  std::vector<int32_t> eos_ids;
  std::optional<double> temperature, top_p;
  std::optional<int64_t> top_k;
};
Result<GenerationDefaults> LoadGenerationDefaults(const std::string& directory);

// First difference between a base and a fine-tune that a delta cannot express, as kUnsupported naming the field; Ok if
// the fine-tune differs only in what a variant may change (eos, RoPE, max positions, vocabulary size, tying).
Status CheckVariantConfig(const ModelConfig& base, const ModelConfig& variant);

}  // namespace df

#endif  // DELTAFOLD_FORMAT_MODEL_CONFIG_H_
