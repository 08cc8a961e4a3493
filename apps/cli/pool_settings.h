// What `deltafold pool create` and `deltafold serve` read alike of a pool's settings.
#ifndef DELTAFOLD_CLI_POOL_SETTINGS_H_
#define DELTAFOLD_CLI_POOL_SETTINGS_H_

#include <string>
#include <vector>

#include "merge/pool_state.h"

namespace df::cli {

// Of merged slots: auto, as their parts; or one type. The flags take no other name.
inline const std::vector<std::string> kPoolDTypes = {"auto", "f32", "bf16", "f16"};
inline void SetPoolDType(const std::string& name, PoolSettings& settings) {
  settings.auto_dtype = name == "auto";
  settings.dtype = name == "bf16" ? DType::kBf16 : name == "f16" ? DType::kF16 : DType::kF32;
}

}  // namespace df::cli

#endif  // DELTAFOLD_CLI_POOL_SETTINGS_H_
