// Any bytes as config.json: parsed, and its RoPE frequencies computed wherever the parser says yes.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "base/bytes.h"
#include "base/json.h"
#include "format/model_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto json = df::ParseJson(df::AsText(df::Bytes(data, size)));
  if (!json.ok()) return 0;
  const auto config = df::ParseModelConfig(json.value());
  if (!config.ok()) return 0;
  const df::RopeFrequencies rope = df::ComputeRopeFrequencies(config->rope, config->head_dim);
  for (const float f : rope.inv_freq) {
    if (!std::isfinite(f)) std::abort();
  }
  static_cast<void>(df::CheckVariantConfig(config.value(), config.value()).ok());
  return 0;
}
