#include "tools/synthetic_shape.h"

#include "base/json.h"

namespace df::tools {
namespace {

struct ModelShape {
  const char* name;
  bool qwen3;  // norms on the heads of q and k; else a Llama
  size_t d_model, n_layers, n_heads, n_kv_heads, head_dim, d_ff, vocab;
  bool tied;
};

constexpr ModelShape kShapes[] = {
    {"qwen3-0.6b", true, 1024, 28, 16, 8, 128, 3072, 151936, true},
    {"tinyllama-1.1b", false, 2048, 22, 32, 4, 64, 5632, 32000, false},
    {"llama-1b", false, 2048, 16, 32, 8, 64, 8192, 128256, true},
    {"qwen3-4b", true, 2560, 36, 32, 8, 128, 9728, 151936, true},
    {"llama-8b", false, 4096, 32, 32, 8, 128, 14336, 128256, false},
    {"llama-2-7b", false, 4096, 32, 32, 32, 128, 11008, 32000, false},
    {"mistral-7b", false, 4096, 32, 32, 8, 128, 14336, 32000, false},
    {"llama-2-70b", false, 8192, 80, 64, 8, 128, 28672, 32000, false},
    {"llama-3-70b", false, 8192, 80, 64, 8, 128, 28672, 128256, false},
    {"small", true, 512, 4, 8, 4, 64, 2048, 4096, true},
    {"wide", true, 2048, 1, 16, 4, 128, 8192, 1024, true},
};

Json ConfigOf(const ModelShape& shape) {
  return {{"architectures", {shape.qwen3 ? "Qwen3ForCausalLM" : "LlamaForCausalLM"}},
          {"model_type", shape.qwen3 ? "qwen3" : "llama"},
          {"hidden_size", shape.d_model},
          {"num_hidden_layers", shape.n_layers},
          {"num_attention_heads", shape.n_heads},
          {"num_key_value_heads", shape.n_kv_heads},
          {"head_dim", shape.head_dim},
          {"intermediate_size", shape.d_ff},
          {"vocab_size", shape.vocab},
          {"max_position_embeddings", 4096},
          {"rms_norm_eps", 1e-6},
          {"rope_theta", 1000000.0},
          {"tie_word_embeddings", shape.tied},
          {"hidden_act", "silu"},
          {"attention_bias", false},
          {"torch_dtype", "bfloat16"}};
}

}  // namespace

std::vector<std::string> SyntheticShapeNames() {
  std::vector<std::string> names;
  for (const ModelShape& shape : kShapes) names.emplace_back(shape.name);
  return names;
}

Result<Json> SyntheticConfig(std::string_view shape_name) {
  const std::string_view name = shape_name == "llama-3-8b" ? "llama-8b" : shape_name;  // the documents' name for it
  std::string known;
  for (const ModelShape& shape : kShapes) {
    if (shape.name == name) return ConfigOf(shape);
    known += (known.empty() ? "" : ", ") + std::string(shape.name);
  }
  return InvalidArgument("unknown shape " + std::string(shape_name) + "; known: " + known);
}

}  // namespace df::tools
