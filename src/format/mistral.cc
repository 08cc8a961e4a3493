// Mistral: no biases; one sliding window for every layer: absent means 4096, null means none.
#include <algorithm>

#include "format/architecture.h"

namespace df::internal {
namespace {

Status Read(const Json& json, ModelConfig& config) {
  DF_RETURN_IF_ERROR(RefuseTrue(json, "attention_bias", config.model_type));
  DF_RETURN_IF_ERROR(RefuseTrue(json, "mlp_bias", config.model_type));
  int64_t window = 0;
  if (!json.contains("sliding_window")) {
    window = 4096;
  } else if (JsonMemberOrNull(json, "sliding_window") != nullptr) {
    DF_ASSIGN_OR_RETURN(window, JsonInt(json, "sliding_window", kWindowRange));
  }
  DF_ASSIGN_OR_RETURN(const std::vector<bool> sliding, ReadLayerTypes(json, config.n_layers));
  if (std::find(sliding.begin(), sliding.end(), window == 0) != sliding.end()) {
    return Unsupported(
        "\"layer_types\" that contradict \"sliding_window\": a model of type mistral has one window for all "
        "layers");
  }
  config.window.assign(config.n_layers, static_cast<size_t>(window));
  return Status::Ok();
}

}  // namespace

const ArchitectureRules kMistralRules = {.architecture = Architecture::kMistral,
                                         .model_type = "mistral",
                                         .class_name = "MistralForCausalLM",
                                         .default_kv_heads = 8,
                                         .default_head_dim = 0,
                                         .default_max_positions = 131072,
                                         .read = Read};

}  // namespace df::internal
