// What a model tells an adapter's reader about itself.
#ifndef DELTAFOLD_FORMAT_LINEAR_MODULE_H_
#define DELTAFOLD_FORMAT_LINEAR_MODULE_H_

#include <cstddef>
#include <string>

namespace df {

// A linear module of the base that an adapter may change.
struct LinearModule {
  std::string path;  // "model.layers.0.self_attn.q_proj"
  size_t d_out = 0;
  size_t d_in = 0;
};

}  // namespace df

#endif  // DELTAFOLD_FORMAT_LINEAR_MODULE_H_
