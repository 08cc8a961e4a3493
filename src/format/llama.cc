// Llama: biases by attention_bias (q, k, v, o) and mlp_bias; full attention in every layer.
#include <algorithm>

#include "format/architecture.h"

namespace df::internal {
namespace {

Status Read(const Json& json, ModelConfig& config) {
  DF_ASSIGN_OR_RETURN(config.qkv_bias, JsonBoolOr(json, "attention_bias", false));
  config.o_bias = config.qkv_bias;
  DF_ASSIGN_OR_RETURN(config.mlp_bias, JsonBoolOr(json, "mlp_bias", false));
  if (JsonMemberOrNull(json, "sliding_window") != nullptr) {
    DF_ASSIGN_OR_RETURN(const bool used, JsonBoolOr(json, "use_sliding_window", true));
    if (used) return Unsupported("\"sliding_window\" in a model of type llama, which has full attention only");
  }
  DF_ASSIGN_OR_RETURN(const std::vector<bool> sliding, ReadLayerTypes(json, config.n_layers));
  if (std::find(sliding.begin(), sliding.end(), true) != sliding.end()) {
    return Unsupported(
        "\"layer_types\" with sliding_attention in a model of type llama, which has full attention only");
  }
  return Status::Ok();
}

}  // namespace

const ArchitectureRules kLlamaRules = {.architecture = Architecture::kLlama,
                                       .model_type = "llama",
                                       .class_name = "LlamaForCausalLM",
                                       .default_kv_heads = 0,
                                       .default_head_dim = 0,
                                       .default_max_positions = 2048,
                                       .read = Read};

}  // namespace df::internal
