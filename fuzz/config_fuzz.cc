// Any bytes as config.json: what is accepted keeps the promises that the model relies on.
#include <cmath>

#include "base/bytes.h"
#include "base/check.h"
#include "base/json.h"
#include "format/model_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto json = df::ParseJson(df::AsText({data, size}));
  if (!json.ok()) return 0;
  DF_CHECK(df::ParseJson(df::DumpJson(*json)).ok());
  const auto config = df::ParseModelConfig(*json);
  if (!config.ok()) {
    const df::StatusCode code = config.status().code();
    DF_CHECK(code == df::StatusCode::kInvalidArgument || code == df::StatusCode::kUnsupported);
    return 0;
  }
  DF_CHECK(config->n_kv_heads > 0 && config->n_heads % config->n_kv_heads == 0);
  DF_CHECK(config->head_dim >= 2 && config->head_dim % 2 == 0);
  DF_CHECK(config->window.size() == config->n_layers && config->max_positions > 0);
  const df::RopeFrequencies frequencies = df::ComputeRopeFrequencies(config->rope, config->head_dim);
  DF_CHECK(frequencies.inv_freq.size() == config->head_dim / 2 && std::isfinite(frequencies.magnitude));
  for (const float f : frequencies.inv_freq) DF_CHECK(std::isfinite(f) && f > 0);
  DF_CHECK(df::CheckVariantConfig(*config, *config).ok());
  return 0;
}
