#include "model/layer_names.h"

#include <array>
#include <charconv>
#include <string_view>

namespace df {
namespace {

constexpr std::array<std::string_view, kLinearSlots> kLinearNames = {
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
    "mlp.gate_proj",    "mlp.up_proj",      "mlp.down_proj"};

constexpr std::array<std::string_view, kNormSlots> kNormNames = {"input_layernorm", "post_attention_layernorm",
                                                                 "self_attn.q_norm", "self_attn.k_norm"};

constexpr std::string_view kLayers = "model.layers.";

std::string LayerPrefix(size_t layer) { return std::string(kLayers) + std::to_string(layer) + "."; }

}  // namespace

LinearDims DimsOf(const ModelConfig& config, LinearSlot slot) {
  const size_t q = config.n_heads * config.head_dim;
  const size_t kv = config.n_kv_heads * config.head_dim;
  switch (slot) {
    case LinearSlot::kQ: return {q, config.d_model};
    case LinearSlot::kK:
    case LinearSlot::kV: return {kv, config.d_model};
    case LinearSlot::kO: return {config.d_model, q};
    case LinearSlot::kGate:
    case LinearSlot::kUp: return {config.d_ff, config.d_model};
    case LinearSlot::kDown: return {config.d_model, config.d_ff};
  }
  return {};
}

bool HasBias(const ModelConfig& config, LinearSlot slot) {
  switch (slot) {
    case LinearSlot::kQ:
    case LinearSlot::kK:
    case LinearSlot::kV: return config.qkv_bias;
    case LinearSlot::kO: return config.o_bias;
    case LinearSlot::kGate:
    case LinearSlot::kUp:
    case LinearSlot::kDown: return config.mlp_bias;
  }
  return false;
}

size_t SizeOf(const ModelConfig& config, NormSlot slot) {
  const bool on_heads = slot == NormSlot::kQuery || slot == NormSlot::kKey;
  if (!on_heads) return config.d_model;
  return config.qk_norm ? config.head_dim : 0;
}

std::string ModuleName(size_t layer, LinearSlot slot) {
  return LayerPrefix(layer) + std::string(kLinearNames[static_cast<size_t>(slot)]);
}
std::string WeightName(size_t layer, LinearSlot slot) { return ModuleName(layer, slot) + ".weight"; }
std::string BiasName(size_t layer, LinearSlot slot) { return ModuleName(layer, slot) + ".bias"; }
std::string NormName(size_t layer, NormSlot slot) {
  return LayerPrefix(layer) + std::string(kNormNames[static_cast<size_t>(slot)]) + ".weight";
}

std::optional<size_t> LayerOf(std::string_view tensor) {
  if (!tensor.starts_with(kLayers)) return std::nullopt;
  const char* const end = tensor.data() + tensor.size();
  size_t layer = 0;
  const auto [stopped, error] = std::from_chars(tensor.data() + kLayers.size(), end, layer);
  if (error != std::errc() || stopped == end || *stopped != '.') return std::nullopt;
  return layer;
}

}  // namespace df
