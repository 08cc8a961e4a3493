// Any bytes as adapter_config.json: patterns are matched in bounded time, ranks stay in range.
#include "base/bytes.h"
#include "base/check.h"
#include "base/json.h"
#include "format/peft_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto json = df::ParseJson(df::AsText({data, size}));
  if (!json.ok()) return 0;
  const auto config = df::ParsePeftConfig(*json);
  if (!config.ok()) {
    const df::StatusCode code = config.status().code();
    DF_CHECK(code == df::StatusCode::kInvalidArgument || code == df::StatusCode::kUnsupported);
    return 0;
  }
  for (const char* path : {"model.layers.0.self_attn.q_proj", "model.layers.31.mlp.down_proj", "lm_head", ""}) {
    static_cast<void>(config->Targets(path));
    DF_CHECK(config->RankOf(path) >= 1 && config->RankOf(path) <= 65536);
    static_cast<void>(config->ScaleOf(path));
  }
  return 0;
}
