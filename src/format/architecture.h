// What each supported architecture reads from config.json beyond the common fields: one file an architecture, one row
// each in kArchitectures (model_config.cc). Defaults are those of the reference implementation's classes.
#ifndef DELTAFOLD_FORMAT_ARCHITECTURE_H_
#define DELTAFOLD_FORMAT_ARCHITECTURE_H_

#include <string_view>

#include "base/json.h"
#include "base/status.h"
#include "format/model_config.h"

namespace df::internal {

struct ArchitectureRules {
  Architecture architecture;
  std::string_view model_type;  // "llama"
  std::string_view class_name;  // "LlamaForCausalLM": any other class of it (a classifier ...) computes something else
  int64_t default_kv_heads;     // when the key is absent; 0: as many as heads. A null always means as many as heads
  int64_t default_head_dim;     // when the key is absent; 0: d_model / heads
  int64_t default_max_positions;
  // Reads biases, norms and windows into `config`, whose sizes are set. Errors as ParseModelConfig.
  Status (*read)(const Json& json, ModelConfig& config);
};

extern const ArchitectureRules kLlamaRules;
extern const ArchitectureRules kMistralRules;
extern const ArchitectureRules kQwen2Rules;
extern const ArchitectureRules kQwen3Rules;

// Refuses `key: true` where the architecture has no such part.
Status RefuseTrue(const Json& json, std::string_view key, std::string_view model_type);

// "layer_types", checked against the number of layers: true = sliding_attention; empty when the key is absent.
Result<std::vector<bool>> ReadLayerTypes(const Json& json, size_t n_layers);

// Window of Qwen2 and Qwen3: only with use_sliding_window, on the layers that layer_types names, else on those from
// max_window_layers on.
Status ReadQwenWindow(const Json& json, ModelConfig& config);

// A token id or a list of them; empty when absent or null.
Result<std::vector<int32_t>> ReadIds(const Json& json, std::string_view key);

inline constexpr IntRange kWindowRange{.min = 1, .max = int64_t{1} << 30};

// RoPE of either dialect into config.rope; may lower config.max_positions (dynamic).
Status ReadRope(const Json& json, ModelConfig& config);

}  // namespace df::internal

#endif  // DELTAFOLD_FORMAT_ARCHITECTURE_H_
