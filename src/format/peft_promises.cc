#include "format/peft_promises.h"

#include <algorithm>

#include "format/message.h"

namespace df {
namespace {

using Part = AdapterPart;

Status Misplaced(const NamedTensor& tensor, const std::string& why) {
  return Corrupt("adapter tensor " + Quoted(tensor.name) + ": " + why);
}

// Whether `name` of modules_to_save means `path`: an ending of it, or of a module that it is in.
bool IsSavedAs(std::string_view path, const std::string& name) {
  for (size_t end = path.size(); end != std::string_view::npos; end = path.substr(0, end).rfind('.')) {
    if (path.substr(0, end).ends_with(name)) return true;
  }
  return false;
}

}  // namespace

Status CheckModulePromises(const PeftConfig& config, const std::string& path, const AdapterParts& parts) {
  const auto has = [&parts](Part part) { return parts.OrNull(part) != nullptr; };
  const std::string name = "module " + Quoted(path);
  const bool expects_magnitude = config.dora && parts.HasFactors();
  if (config.dora && has(Part::kEmbeddingA)) {
    return Unsupported("adapter field \"use_dora\": DoRA on an embedding is not supported");
  }
  if (expects_magnitude != has(Part::kMagnitude)) {
    return Corrupt("adapter field \"use_dora\" is " + std::string(config.dora ? "true" : "false") + ", but " + name +
                   " has " + (expects_magnitude ? "no lora_magnitude_vector" : "a lora_magnitude_vector"));
  }
  if (has(Part::kBBias) && !config.lora_bias) {
    return Misplaced(*parts.OrNull(Part::kBBias), "adapter field \"lora_bias\" is false");
  }
  if (config.lora_bias && has(Part::kA) && !has(Part::kBBias)) {
    return Corrupt("adapter field \"lora_bias\" is true, but " + name + " has no lora_B.bias");
  }
  const bool may_have_bias = config.Saves(path) || config.bias == AdapterBias::kAll ||
                             (config.bias == AdapterBias::kLoraOnly && config.Targets(path));
  if (has(Part::kBias) && !may_have_bias) {
    return Misplaced(*parts.OrNull(Part::kBias), "adapter field \"bias\" leaves it out");
  }
  return Status::Ok();
}

Status CheckPromises(const PeftConfig& config, const std::map<std::string, AdapterParts>& parts) {
  for (const auto& [path, module] : parts) DF_RETURN_IF_ERROR(CheckModulePromises(config, path, module));
  for (const std::string& name : config.modules_to_save) {
    const bool is_stored = std::ranges::any_of(parts, [&](const auto& entry) {
      return entry.second.OrNull(Part::kWeight) != nullptr && IsSavedAs(entry.first, name);
    });
    if (is_stored) continue;
    return Corrupt("modules_to_save names module " + Quoted(name) + ", but the adapter stores no weight of it");
  }
  for (const TrainableTokens& tokens : config.trainable_tokens) {
    const bool is_stored = std::ranges::any_of(parts, [&](const auto& entry) {
      return entry.second.OrNull(Part::kTokens) != nullptr && config.TokensOrNull(entry.first) == &tokens;
    });
    if (is_stored || tokens.index.empty()) continue;
    return Corrupt("trainable_token_indices names module " + Quoted(tokens.module) +
                   ", but the adapter stores no trainable_tokens_delta of it");
  }
  return Status::Ok();
}

}  // namespace df
