// Engine options made definite: defaults filled in, limits checked, the KV cache sized.
#ifndef DELTAFOLD_ENGINE_SIZING_H_
#define DELTAFOLD_ENGINE_SIZING_H_

#include <cstdint>

#include "base/status.h"
#include "engine/engine.h"

namespace df {

// Memory that can be used without swapping: the system's MemAvailable, less where a cgroup allows less. 0 when unknown.
uint64_t AvailableMemoryBytes();

// The options with every 0 replaced; `available_bytes` 0 = unknown. Errors as of Engine::Create.
Result<EngineOptions> ResolveOptions(const ModelConfig& config, EngineOptions options, uint64_t available_bytes);

}  // namespace df

#endif  // DELTAFOLD_ENGINE_SIZING_H_
