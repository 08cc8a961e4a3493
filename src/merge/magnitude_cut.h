// Which entries of a task vector are the k of largest magnitude: exactly, by counting the magnitudes' bits, without
// sorting or holding them.
#ifndef DELTAFOLD_MERGE_MAGNITUDE_CUT_H_
#define DELTAFOLD_MERGE_MAGNITUDE_CUT_H_

#include <vector>

#include "merge/method.h"

namespace df::merge {

// An entry stays when the bits of its magnitude are above `bits`, or equal and its flat index is below `end`.
struct MagnitudeCut {
  uint32_t bits = 0;
  size_t end = SIZE_MAX;
};

// The cut that keeps max(1, floor(density n)) of the n entries of W_i - W_b as f32, for each model; of equal magnitudes
// those of lower index stay. densities [k], in (0, 1]. Of entries that are not finite, the bits decide. Memory: 768 KiB
// a thread.
std::vector<MagnitudeCut> FindMagnitudeCuts(ThreadPool& pool, const TensorGroup& group,
                                            std::span<const double> densities);

}  // namespace df::merge

#endif  // DELTAFOLD_MERGE_MAGNITUDE_CUT_H_
