#include "format/model_config.h"

#include <algorithm>
#include <array>

#include "base/json.h"
#include "format/architecture.h"
#include "format/message.h"

namespace df {
namespace {

using internal::ArchitectureRules;

constexpr std::array kArchitectures = {&internal::kLlamaRules, &internal::kMistralRules, &internal::kQwen2Rules,
                                       &internal::kQwen3Rules};

// Bounds far above any real model: their products fit into 64 bits, and vectors per layer stay small.
constexpr IntRange kDimRange{.min = 1, .max = int64_t{1} << 20};
constexpr IntRange kLayersRange{.min = 1, .max = 4096};
constexpr IntRange kHeadsRange{.min = 1, .max = 8192};
constexpr IntRange kHeadDimRange{.min = 2, .max = 8192};
constexpr IntRange kWideRange{.min = 1, .max = int64_t{1} << 24};
constexpr IntRange kPositionsRange{.min = 1, .max = int64_t{1} << 30};
constexpr IntRange kTokenRange{.min = 0, .max = INT32_MAX};

// Keys of related models that change the computation. Absent, null, false and empty are neutral.
constexpr std::array<std::string_view, 31> kRefusedKeys = {"quantization_config",
                                                           "compression_config",
                                                           "attn_logit_softcapping",
                                                           "attn_logit_softcap",
                                                           "final_logit_softcapping",
                                                           "final_logit_softcap",
                                                           "query_pre_attn_scalar",
                                                           "attention_chunk_size",
                                                           "attn_temperature_tuning",
                                                           "clip_qkv",
                                                           "alibi",
                                                           "use_alibi",
                                                           "no_rope_layers",
                                                           "no_rope_layer_interval",
                                                           "rope_interleaved",
                                                           "is_encoder_decoder",
                                                           "add_cross_attention",
                                                           "cross_attention_layers",
                                                           "kv_lora_rank",
                                                           "q_lora_rank",
                                                           "num_experts",
                                                           "num_local_experts",
                                                           "n_routed_experts",
                                                           "sliding_window_pattern",
                                                           "per_layer_config",
                                                           "qk_layernorm",
                                                           "use_qk_norm",
                                                           "llama_4_scaling_beta",
                                                           "qkv_bias",
                                                           "use_bias",
                                                           "parallel_attn"};
// The same, with 1 as neutral value too.
constexpr std::array<std::string_view, 8> kRefusedFactors = {
    "logit_scale",          "logits_scaling", "residual_multiplier", "embedding_multiplier",
    "attention_multiplier", "scale_emb",      "scale_depth",         "partial_rotary_factor"};

bool IsNeutral(const Json& json, std::string_view key) {
  const Json* value = JsonMemberOrNull(json, key);
  if (value == nullptr || (value->is_boolean() && !value->get<bool>())) return true;
  return value->is_structured() && value->empty();
}

Status RefuseUnknownComputation(const Json& json) {
  const auto refuse = [&json](std::string_view key) {
    return Unsupported("\"" + std::string(key) + "\": " + DumpJson(json.at(std::string(key))).substr(0, 60) +
                       " is not supported");
  };
  for (const std::string_view key : kRefusedKeys) {
    if (!IsNeutral(json, key)) return refuse(key);
  }
  for (const std::string_view key : kRefusedFactors) {
    if (IsNeutral(json, key)) continue;
    const Json& value = json.at(std::string(key));
    if (!value.is_number() || value.get<double>() != 1.0) return refuse(key);
  }
  DF_ASSIGN_OR_RETURN(const std::string activation, JsonStringOr(json, "hidden_act", "silu"));
  if (activation == "silu" || activation == "swish") return Status::Ok();  // two names of one function
  return Unsupported("\"hidden_act\" " + Quoted(activation) + " is not supported: only \"silu\" is");
}

Result<const ArchitectureRules*> FindRules(const Json& json) {
  DF_ASSIGN_OR_RETURN(const std::string type, JsonString(json, "model_type"));
  const auto at = std::find_if(kArchitectures.begin(), kArchitectures.end(),
                               [&type](const ArchitectureRules* rules) { return rules->model_type == type; });
  if (at == kArchitectures.end()) {
    return Unsupported("\"model_type\" " + Quoted(type) + " is not supported: llama, mistral, qwen2 and qwen3 are");
  }
  const Json* classes = JsonMemberOrNull(json, "architectures");
  if (classes == nullptr || (classes->is_array() && classes->empty())) return *at;
  if (!classes->is_array()) return InvalidArgument("\"architectures\" must be a list of names");
  for (const Json& name : *classes) {
    if (name.is_string() && name.get_ref<const std::string&>() == (*at)->class_name) return *at;
  }
  return Unsupported("\"architectures\" " + DumpJson(*classes).substr(0, 80) + " is not supported: for model_type " +
                     type + " only " + std::string((*at)->class_name) + " is");
}

Result<size_t> JsonSize(const Json& json, std::string_view key, IntRange range) {
  DF_ASSIGN_OR_RETURN(const int64_t value, JsonInt(json, key, range));
  return static_cast<size_t>(value);
}

Status ReadHeads(const Json& json, const ArchitectureRules& rules, ModelConfig& config) {
  DF_ASSIGN_OR_RETURN(config.n_heads, JsonSize(json, "num_attention_heads", kHeadsRange));
  const bool kv_absent = !json.contains("num_key_value_heads");
  const auto n_heads = static_cast<int64_t>(config.n_heads);
  const int64_t default_kv = kv_absent && rules.default_kv_heads != 0 ? rules.default_kv_heads : n_heads;
  DF_ASSIGN_OR_RETURN(const int64_t n_kv_heads, JsonIntOr(json, "num_key_value_heads", kHeadsRange, default_kv));
  config.n_kv_heads = static_cast<size_t>(n_kv_heads);
  if (config.n_heads % config.n_kv_heads != 0) {
    return InvalidArgument("\"num_attention_heads\" " + std::to_string(config.n_heads) +
                           " is not a multiple of \"num_key_value_heads\" " + std::to_string(config.n_kv_heads));
  }
  const bool has_head_dim = JsonMemberOrNull(json, "head_dim") != nullptr;
  if (has_head_dim) {
    DF_ASSIGN_OR_RETURN(config.head_dim, JsonSize(json, "head_dim", kHeadDimRange));
  } else if (rules.default_head_dim != 0) {
    config.head_dim = static_cast<size_t>(rules.default_head_dim);
  } else if (config.d_model % config.n_heads == 0) {
    config.head_dim = config.d_model / config.n_heads;
  } else {
    return InvalidArgument("\"hidden_size\" " + std::to_string(config.d_model) +
                           " is not a multiple of \"num_attention_heads\" " + std::to_string(config.n_heads) +
                           " and no \"head_dim\" is given");
  }
  if (config.head_dim % 2 != 0) {
    return InvalidArgument("head_dim " + std::to_string(config.head_dim) + " is odd: RoPE rotates pairs");
  }
  return Status::Ok();
}

Status ReadSizes(const Json& json, const ArchitectureRules& rules, ModelConfig& config) {
  DF_ASSIGN_OR_RETURN(config.d_model, JsonSize(json, "hidden_size", kDimRange));
  DF_ASSIGN_OR_RETURN(config.n_layers, JsonSize(json, "num_hidden_layers", kLayersRange));
  DF_ASSIGN_OR_RETURN(config.d_ff, JsonSize(json, "intermediate_size", kWideRange));
  DF_ASSIGN_OR_RETURN(config.vocab, JsonSize(json, "vocab_size", kWideRange));
  DF_RETURN_IF_ERROR(ReadHeads(json, rules, config));
  DF_ASSIGN_OR_RETURN(const int64_t positions,
                      JsonIntOr(json, "max_position_embeddings", kPositionsRange, rules.default_max_positions));
  config.max_positions = static_cast<size_t>(positions);
  DF_ASSIGN_OR_RETURN(config.rms_eps, JsonNumberOr(json, "rms_norm_eps", 1e-6));
  if (config.rms_eps > 0 && config.rms_eps < 1) return Status::Ok();
  return InvalidArgument("\"rms_norm_eps\" must be above 0 and below 1, got " +
                         DumpJson(*JsonMemberOrNull(json, "rms_norm_eps")));
}

Status ReadTokenIds(const Json& json, ModelConfig& config) {
  DF_ASSIGN_OR_RETURN(config.eos_ids, internal::ReadIds(json, "eos_token_id"));
  if (JsonMemberOrNull(json, "bos_token_id") == nullptr) return Status::Ok();
  DF_ASSIGN_OR_RETURN(const int64_t bos, JsonInt(json, "bos_token_id", kTokenRange));
  config.bos_id = static_cast<int32_t>(bos);
  return Status::Ok();
}

// `dtype` (5.x) or `torch_dtype` (4.x); other names leave it open: the stored tensors decide.
Status ReadDType(const Json& json, ModelConfig& config) {
  const std::string_view key = JsonMemberOrNull(json, "dtype") != nullptr ? "dtype" : "torch_dtype";
  DF_ASSIGN_OR_RETURN(const std::string name, JsonStringOr(json, key, ""));
  if (name == "bfloat16") config.dtype = DType::kBf16;
  if (name == "float16") config.dtype = DType::kF16;
  if (name == "float32") config.dtype = DType::kF32;
  return Status::Ok();
}

}  // namespace

namespace internal {

Status RefuseTrue(const Json& json, std::string_view key, std::string_view model_type) {
  DF_ASSIGN_OR_RETURN(const bool value, JsonBoolOr(json, key, false));
  if (!value) return Status::Ok();
  return Unsupported("\"" + std::string(key) + "\": true in a model of type " + std::string(model_type) +
                     ", which has no such part");
}

Result<std::vector<bool>> ReadLayerTypes(const Json& json, size_t n_layers) {
  const Json* types = JsonMemberOrNull(json, "layer_types");
  if (types == nullptr) return std::vector<bool>();
  if (!types->is_array() || types->size() != n_layers) {
    return InvalidArgument("\"layer_types\" must be a list of " + std::to_string(n_layers) + " names, got " +
                           (types->is_array() ? std::to_string(types->size()) : DumpJson(*types).substr(0, 60)));
  }
  std::vector<bool> sliding;
  for (const Json& type : *types) {
    const std::string name = type.is_string() ? type.get<std::string>() : "";
    if (name != "full_attention" && name != "sliding_attention" && name != "attention") {
      return Unsupported("\"layer_types\" with " + DumpJson(type).substr(0, 60) + " is not supported");
    }
    sliding.push_back(name == "sliding_attention");
  }
  return sliding;
}

Result<std::vector<int32_t>> ReadIds(const Json& json, std::string_view key) {
  constexpr size_t kMaxIds = 1024;  // real models name fewer than ten
  std::vector<int32_t> ids;
  const Json* value = JsonMemberOrNull(json, key);
  if (value == nullptr) return ids;
  const Json list = value->is_array() ? *value : Json::array({*value});
  if (list.size() > kMaxIds) return InvalidArgument("\"" + std::string(key) + "\" lists more than 1024 ids");
  for (const Json& id : list) {
    Json one = Json::object();
    one[std::string(key)] = id;
    DF_ASSIGN_OR_RETURN(const int64_t number, JsonInt(one, key, kTokenRange));
    ids.push_back(static_cast<int32_t>(number));
  }
  return ids;
}

}  // namespace internal

Result<ModelConfig> ParseModelConfig(const Json& json) {
  if (!json.is_object()) return InvalidArgument("the model config must be a JSON object");
  DF_ASSIGN_OR_RETURN(const ArchitectureRules* rules, FindRules(json));
  DF_RETURN_IF_ERROR(RefuseUnknownComputation(json));
  ModelConfig config;
  config.architecture = rules->architecture;
  config.model_type = rules->model_type;
  DF_RETURN_IF_ERROR(ReadSizes(json, *rules, config));
  DF_ASSIGN_OR_RETURN(config.tied_head, JsonBoolOr(json, "tie_word_embeddings", false));
  config.window.assign(config.n_layers, 0);
  DF_RETURN_IF_ERROR(rules->read(json, config));
  DF_RETURN_IF_ERROR(internal::ReadRope(json, config));
  DF_RETURN_IF_ERROR(ReadTokenIds(json, config));
  DF_RETURN_IF_ERROR(ReadDType(json, config));
  return config;
}

Result<ModelConfig> LoadModelConfig(const std::string& directory) {
  const std::string path = directory + "/config.json";
  DF_ASSIGN_OR_RETURN(const Json json, ReadJsonFile(path));
  Result<ModelConfig> config = ParseModelConfig(json);
  if (!config.ok()) return config.status().Annotate(path);
  return config;
}

Status CheckVariantConfig(const ModelConfig& base, const ModelConfig& variant) {
  struct Field {
    std::string_view name;
    size_t base, variant;
  };
  const std::array<Field, 10> fields = {{
      {"hidden_size", base.d_model, variant.d_model},
      {"num_hidden_layers", base.n_layers, variant.n_layers},
      {"num_attention_heads", base.n_heads, variant.n_heads},
      {"num_key_value_heads", base.n_kv_heads, variant.n_kv_heads},
      {"head_dim", base.head_dim, variant.head_dim},
      {"intermediate_size", base.d_ff, variant.d_ff},
      {"attention_bias", base.qkv_bias ? 1U : 0U, variant.qkv_bias ? 1U : 0U},
      {"attention_bias (output projection)", base.o_bias ? 1U : 0U, variant.o_bias ? 1U : 0U},
      {"mlp_bias", base.mlp_bias ? 1U : 0U, variant.mlp_bias ? 1U : 0U},
      {"q_norm, k_norm", base.qk_norm ? 1U : 0U, variant.qk_norm ? 1U : 0U},
  }};
  const std::string tail =
      ": a variant may differ from its base in eos, RoPE, max positions, vocabulary and tying only";
  if (base.model_type != variant.model_type) {
    return Unsupported("model_type is " + variant.model_type + ", the base's is " + base.model_type + tail);
  }
  for (const Field& field : fields) {
    if (field.base == field.variant) continue;
    return Unsupported(std::string(field.name) + " is " + std::to_string(field.variant) + ", the base's is " +
                       std::to_string(field.base) + tail);
  }
  if (base.rms_eps != variant.rms_eps) {
    return Unsupported("rms_norm_eps is " + DumpJson(variant.rms_eps) + ", the base's is " + DumpJson(base.rms_eps) +
                       tail);
  }
  for (size_t layer = 0; layer < base.n_layers; ++layer) {
    if (base.window[layer] == variant.window[layer]) continue;
    return Unsupported("sliding window of layer " + std::to_string(layer) + " is " +
                       std::to_string(variant.window[layer]) + ", the base's is " + std::to_string(base.window[layer]) +
                       tail);
  }
  return Status::Ok();
}

}  // namespace df
