// The tensors of a PEFT adapter file, by the module that they belong to.
#ifndef DELTAFOLD_FORMAT_PEFT_TENSORS_H_
#define DELTAFOLD_FORMAT_PEFT_TENSORS_H_

#include <array>
#include <map>
#include <string>

#include "format/safetensors.h"

namespace df {

// What a tensor is to its module. In the file: base_model.model.PATH + the ending; an adapter's name may follow the
// part that starts with "lora_" or "trainable_".
enum class AdapterPart : size_t {
  kA,           // .lora_A.weight                            [r, d_in]
  kB,           // .lora_B.weight                            [d_out, r]
  kBBias,       // .lora_B.bias                              [d_out]
  kEmbeddingA,  // .lora_embedding_A                         [r, vocab]
  kEmbeddingB,  // .lora_embedding_B                         [d_model, r]
  kMagnitude,   // .lora_magnitude_vector                    [d_out]
  kTokens,      // .token_adapter.trainable_tokens_delta     [k, d_model]
  kWeight,      // .weight or .base_layer.weight             [d_out, d_in], or [n] of a norm
  kBias,        // .bias or .base_layer.bias                 [d_out]
};
inline constexpr size_t kAdapterParts = 9;

struct AdapterParts {
  std::array<const NamedTensor*, kAdapterParts> tensors = {};

  const NamedTensor* OrNull(AdapterPart part) const { return tensors[static_cast<size_t>(part)]; }
  const TensorView* ViewOrNull(AdapterPart part) const {
    return OrNull(part) != nullptr ? &OrNull(part)->view : nullptr;
  }
  bool HasFactors() const;
};

// By module path. Views into `file`. The only errors are kUnsupported (a name of no known form) and kCorrupt (two
// tensors of one part, a dtype other than F32, BF16 and F16, a rank other than the part's, one factor without the
// other, no factors at all).
Result<std::map<std::string, AdapterParts>> ListAdapterParts(const SafetensorsFile& file);

}  // namespace df

#endif  // DELTAFOLD_FORMAT_PEFT_TENSORS_H_
