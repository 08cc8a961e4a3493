// Qwen3: RMS norm on each head of q and k before RoPE; biases on q, k, v, o by attention_bias.
#include "format/architecture.h"

namespace df::internal {
namespace {

Status Read(const Json& json, ModelConfig& config) {
  DF_RETURN_IF_ERROR(RefuseTrue(json, "mlp_bias", config.model_type));
  DF_ASSIGN_OR_RETURN(config.qkv_bias, JsonBoolOr(json, "attention_bias", false));
  config.o_bias = config.qkv_bias;
  config.qk_norm = true;
  return ReadQwenWindow(json, config);
}

}  // namespace

const ArchitectureRules kQwen3Rules = {.architecture = Architecture::kQwen3,
                                       .model_type = "qwen3",
                                       .class_name = "Qwen3ForCausalLM",
                                       .default_kv_heads = 32,
                                       .default_head_dim = 128,
                                       .default_max_positions = 32768,
                                       .read = Read};

}  // namespace df::internal
