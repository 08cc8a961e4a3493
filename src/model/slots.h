// The places of a transformer layer that hold weights.
#ifndef DELTAFOLD_MODEL_SLOTS_H_
#define DELTAFOLD_MODEL_SLOTS_H_

#include <cstddef>

namespace df {

// The seven matrices.
enum class LinearSlot : size_t { kQ, kK, kV, kO, kGate, kUp, kDown };
inline constexpr size_t kLinearSlots = 7;

// The norms; those on the heads of q and k exist in Qwen3 only.
enum class NormSlot : size_t { kAttention, kFeedForward, kQuery, kKey };
inline constexpr size_t kNormSlots = 4;

}  // namespace df

#endif  // DELTAFOLD_MODEL_SLOTS_H_
