// Who uses which slot of KernelContext::scratch: a kernel may hold several slots at once, two kernels never run at
// once.
#ifndef DELTAFOLD_KERNELS_SCRATCH_SLOTS_H_
#define DELTAFOLD_KERNELS_SCRATCH_SLOTS_H_

#include <cstddef>

namespace df::kernels {

inline constexpr size_t kSlotLinearTables = 0;   // sign tables of the activations
inline constexpr size_t kSlotLinearPanels = 1;   // unpacked weight tiles, one per thread
inline constexpr size_t kSlotLinearRows = 2;     // packed activation rows
inline constexpr size_t kSlotLinearLowRank = 3;  // x A^T
inline constexpr size_t kSlotAttention = 4;      // queries, sums, scores, tiles
inline constexpr size_t kSlotSample = 5;         // block maxima, candidates; of log-probabilities too
inline constexpr size_t kSlotLinearOther = 6;

}  // namespace df::kernels

#endif  // DELTAFOLD_KERNELS_SCRATCH_SLOTS_H_
