// RoPE settings of both dialects: 4.x `rope_theta` + `rope_scaling` {type or rope_type}, 5.x `rope_parameters` with all
// of it.
#include <algorithm>
#include <cmath>

#include "format/architecture.h"
#include "format/message.h"

namespace df::internal {
namespace {

// One setting may stand in two places; when both are there they must agree, as readers differ in which one wins.
Result<const Json*> OneOf(const Json& json, std::string_view first, const Json& other, std::string_view second) {
  const Json* a = JsonMemberOrNull(json, first);
  const Json* b = JsonMemberOrNull(other, second);
  if (a != nullptr && b != nullptr && *a != *b) {
    return InvalidArgument("\"" + std::string(first) + "\" and \"" + std::string(second) +
                           "\" contradict each other: " + DumpJson(*a).substr(0, 60) + " and " +
                           DumpJson(*b).substr(0, 60));
  }
  return a != nullptr ? a : b;
}

Result<double> Positive(const Json& json, std::string_view key, double otherwise) {
  DF_ASSIGN_OR_RETURN(const double value, JsonNumberOr(json, key, otherwise));
  if (value > 0) return value;
  return InvalidArgument("RoPE's \"" + std::string(key) + "\" must be given and above 0, got " + DumpJson(value));
}

Result<RopeConfig::Kind> ReadKind(const Json& settings) {
  DF_ASSIGN_OR_RETURN(const Json* type, OneOf(settings, "rope_type", settings, "type"));
  if (type == nullptr) return RopeConfig::Kind::kDefault;
  if (!type->is_string())
    return InvalidArgument("\"rope_type\" must be a string, got " + DumpJson(*type).substr(0, 60));
  const auto& name = type->get_ref<const std::string&>();
  if (name == "default") return RopeConfig::Kind::kDefault;
  if (name == "linear") return RopeConfig::Kind::kLinear;
  if (name == "llama3") return RopeConfig::Kind::kLlama3;
  if (name == "yarn") return RopeConfig::Kind::kYarn;
  if (name == "dynamic") return RopeConfig::Kind::kDynamic;
  return Unsupported("RoPE of type " + Quoted(name) +
                     " is not supported: default, linear, llama3, yarn and dynamic (within its original length) are");
}

// Settings that other models use: a dictionary per layer type, rotation of a part of the head, sections per axis.
Status RefuseUnknownSettings(const Json& settings) {
  for (const auto& [key, value] : settings.items()) {
    if (value.is_object()) return Unsupported("RoPE settings per layer type (" + Quoted(key) + ") are not supported");
  }
  for (const char* key : {"mrope_section", "short_factor", "long_factor", "mrope_interleaved"}) {
    if (JsonMemberOrNull(settings, key) != nullptr) return Unsupported("RoPE with \"" + std::string(key) + "\"");
  }
  DF_ASSIGN_OR_RETURN(const double part, JsonNumberOr(settings, "partial_rotary_factor", 1.0));
  if (part == 1.0) return Status::Ok();
  return Unsupported("\"partial_rotary_factor\" " + DumpJson(part) + " is not supported: only 1 is");
}

Status ReadOriginalLength(const Json& json, const Json& settings, const ModelConfig& config, RopeConfig& rope) {
  constexpr std::string_view kKey = "original_max_position_embeddings";
  DF_ASSIGN_OR_RETURN(const Json* outer, OneOf(json, kKey, settings, kKey));
  const Json& holder = JsonMemberOrNull(settings, kKey) == outer ? settings : json;
  DF_ASSIGN_OR_RETURN(rope.original_max_positions, Positive(holder, kKey, static_cast<double>(config.max_positions)));
  return Status::Ok();
}

Status ReadLlama3(const Json& settings, RopeConfig& rope) {
  DF_ASSIGN_OR_RETURN(rope.low_freq_factor, Positive(settings, "low_freq_factor", 0));
  DF_ASSIGN_OR_RETURN(rope.high_freq_factor, Positive(settings, "high_freq_factor", 0));
  if (rope.high_freq_factor > rope.low_freq_factor) return Status::Ok();
  return InvalidArgument("RoPE's \"high_freq_factor\" " + DumpJson(rope.high_freq_factor) +
                         " must be above \"low_freq_factor\" " + DumpJson(rope.low_freq_factor));
}

Result<std::optional<double>> OptionalNumber(const Json& settings, std::string_view key) {
  if (JsonMemberOrNull(settings, key) == nullptr) return std::optional<double>();
  DF_ASSIGN_OR_RETURN(const double value, JsonNumber(settings, key));
  return std::optional<double>(value);
}

Status ReadYarn(const Json& settings, RopeConfig& rope) {
  DF_ASSIGN_OR_RETURN(rope.attention_factor, OptionalNumber(settings, "attention_factor"));
  DF_ASSIGN_OR_RETURN(rope.mscale, OptionalNumber(settings, "mscale"));
  DF_ASSIGN_OR_RETURN(rope.mscale_all_dim, OptionalNumber(settings, "mscale_all_dim"));
  DF_ASSIGN_OR_RETURN(rope.beta_fast, Positive(settings, "beta_fast", 32.0));
  DF_ASSIGN_OR_RETURN(rope.beta_slow, Positive(settings, "beta_slow", 1.0));
  DF_ASSIGN_OR_RETURN(rope.truncate, JsonBoolOr(settings, "truncate", true));
  return Status::Ok();
}

Status ReadTheta(const Json& json, const Json& settings, RopeConfig& rope) {
  DF_ASSIGN_OR_RETURN(const Json* theta, OneOf(json, "rope_theta", settings, "rope_theta"));
  if (theta == nullptr) return Status::Ok();
  const Json& holder = JsonMemberOrNull(settings, "rope_theta") == theta ? settings : json;
  DF_ASSIGN_OR_RETURN(rope.theta, JsonNumber(holder, "rope_theta"));
  if (rope.theta > 1.0) return Status::Ok();
  return InvalidArgument("\"rope_theta\" must be above 1, got " + DumpJson(*theta));
}

// Extreme settings (theta 1e300, factor 1e-300) leave the range of f32.
Status CheckFrequencies(const ModelConfig& config) {
  const RopeFrequencies frequencies = ComputeRopeFrequencies(config.rope, config.head_dim);
  const bool finite = std::all_of(frequencies.inv_freq.begin(), frequencies.inv_freq.end(),
                                  [](float f) { return std::isfinite(f) && f > 0; });
  if (finite && std::isfinite(frequencies.magnitude) && frequencies.magnitude > 0) return Status::Ok();
  return InvalidArgument("the RoPE settings give frequencies outside of f32");
}

}  // namespace

Status ReadRope(const Json& json, ModelConfig& config) {
  DF_ASSIGN_OR_RETURN(const Json* found, OneOf(json, "rope_parameters", json, "rope_scaling"));
  if (found != nullptr && !found->is_object()) {
    return InvalidArgument("\"rope_parameters\" or \"rope_scaling\" must be an object, got " +
                           DumpJson(*found).substr(0, 60));
  }
  const Json settings = found != nullptr ? *found : Json::object();
  DF_RETURN_IF_ERROR(RefuseUnknownSettings(settings));
  RopeConfig& rope = config.rope;
  DF_ASSIGN_OR_RETURN(rope.kind, ReadKind(settings));
  DF_RETURN_IF_ERROR(ReadTheta(json, settings, rope));
  if (rope.kind != RopeConfig::Kind::kDefault) {
    DF_ASSIGN_OR_RETURN(rope.factor, Positive(settings, "factor", 0));
  }
  if (rope.kind >= RopeConfig::Kind::kLlama3) DF_RETURN_IF_ERROR(ReadOriginalLength(json, settings, config, rope));
  if (rope.kind == RopeConfig::Kind::kLlama3) DF_RETURN_IF_ERROR(ReadLlama3(settings, rope));
  if (rope.kind == RopeConfig::Kind::kYarn) DF_RETURN_IF_ERROR(ReadYarn(settings, rope));
  if (rope.kind == RopeConfig::Kind::kDynamic) {
    // Beyond the original length the frequencies depend on the length seen so far: not served.
    const double length = std::min(rope.original_max_positions, static_cast<double>(config.max_positions));
    config.max_positions = std::max<size_t>(1, static_cast<size_t>(length));
  }
  return CheckFrequencies(config);
}

}  // namespace df::internal
