// Names and sizes of a layer's tensors in Hugging Face checkpoints. Used by bind and by the loaders, nowhere else.
#ifndef DELTAFOLD_MODEL_LAYER_NAMES_H_
#define DELTAFOLD_MODEL_LAYER_NAMES_H_

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "format/model_config.h"
#include "model/slots.h"

namespace df {

struct LinearDims {
  size_t d_out = 0;
  size_t d_in = 0;
};

LinearDims DimsOf(const ModelConfig& config, LinearSlot slot);
bool HasBias(const ModelConfig& config, LinearSlot slot);
// Elements of a norm; 0 where the architecture has none.
size_t SizeOf(const ModelConfig& config, NormSlot slot);

std::string ModuleName(size_t layer, LinearSlot slot);  // "model.layers.3.mlp.up_proj"
std::string WeightName(size_t layer, LinearSlot slot);  // + ".weight"
std::string BiasName(size_t layer, LinearSlot slot);    // + ".bias"
std::string NormName(size_t layer, NormSlot slot);      // "model.layers.3.input_layernorm.weight"

// 3 of any of these; nothing for a tensor outside the layers.
std::optional<size_t> LayerOf(std::string_view tensor);

}  // namespace df

#endif  // DELTAFOLD_MODEL_LAYER_NAMES_H_
