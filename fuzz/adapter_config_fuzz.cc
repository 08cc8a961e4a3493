// Any bytes as adapter_config.json: parsed, then its patterns asked about module paths. They come from the file, so
// they must stay linear in time whatever they say.
#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "base/json.h"
#include "format/peft_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto json = df::ParseJson(df::AsText(df::Bytes(data, size)));
  if (!json.ok()) return 0;
  const auto config = df::ParsePeftConfig(json.value());
  if (!config.ok()) return 0;
  for (const char* path : {"model.layers.11.self_attn.q_proj", "model.layers.0.mlp.down_proj", "lm_head"}) {
    static_cast<void>(config->Targets(path));
    static_cast<void>(config->RankOf(path));
    static_cast<void>(config->ScaleOf(path));
  }
  return 0;
}
