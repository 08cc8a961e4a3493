// Qwen2: q, k and v always have a bias, o and the MLP never; `attention_bias` is not read by this architecture.
#include "format/architecture.h"

namespace df::internal {
namespace {

Status Read(const Json& json, ModelConfig& config) {
  DF_RETURN_IF_ERROR(RefuseTrue(json, "mlp_bias", config.model_type));
  config.qkv_bias = true;
  return ReadQwenWindow(json, config);
}

}  // namespace

Status ReadQwenWindow(const Json& json, ModelConfig& config) {
  DF_ASSIGN_OR_RETURN(const bool used, JsonBoolOr(json, "use_sliding_window", false));
  DF_ASSIGN_OR_RETURN(const std::vector<bool> sliding, ReadLayerTypes(json, config.n_layers));
  int64_t window = 0;
  if (used && !json.contains("sliding_window")) {
    window = 4096;
  } else if (used && JsonMemberOrNull(json, "sliding_window") != nullptr) {
    DF_ASSIGN_OR_RETURN(window, JsonInt(json, "sliding_window", kWindowRange));
  }
  DF_ASSIGN_OR_RETURN(const int64_t first, JsonIntOr(json, "max_window_layers", {.min = 0, .max = INT32_MAX}, 28));
  for (size_t layer = 0; layer < config.n_layers; ++layer) {
    const bool slides = sliding.empty() ? window != 0 && layer >= static_cast<size_t>(first) : sliding[layer];
    if (slides && window == 0) {
      return InvalidArgument("\"layer_types\" names sliding_attention for layer " + std::to_string(layer) +
                             ", but no sliding window is in use");
    }
    config.window[layer] = slides ? static_cast<size_t>(window) : 0;
  }
  return Status::Ok();
}

const ArchitectureRules kQwen2Rules = {.architecture = Architecture::kQwen2,
                                       .model_type = "qwen2",
                                       .class_name = "Qwen2ForCausalLM",
                                       .default_kv_heads = 32,
                                       .default_head_dim = 0,
                                       .default_max_positions = 32768,
                                       .read = Read};

}  // namespace df::internal
