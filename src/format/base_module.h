// What a model tells an adapter's reader about itself.
#ifndef DELTAFOLD_FORMAT_BASE_MODULE_H_
#define DELTAFOLD_FORMAT_BASE_MODULE_H_

#include <cstddef>
#include <string>

namespace df {

enum class ModuleKind { kLinear, kEmbedding, kHead, kNorm };

// A module of the base that an adapter may change.
struct BaseModule {
  std::string path;  // "model.layers.0.self_attn.q_proj"
  size_t d_out = 0;  // rows of the weight; elements of a norm
  size_t d_in = 0;   // columns; 1 for a norm
  ModuleKind kind = ModuleKind::kLinear;
  bool has_bias = false;
};

}  // namespace df

#endif  // DELTAFOLD_FORMAT_BASE_MODULE_H_
