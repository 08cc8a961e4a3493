// Selections without sorting a vocabulary, shared by sampler and log-probabilities.
#ifndef DELTAFOLD_KERNELS_CPU_TOP_K_H_
#define DELTAFOLD_KERNELS_CPU_TOP_K_H_

#include <algorithm>
#include <cstddef>
#include <functional>
#include <limits>
#include <span>

namespace df::kernels::cpu {

// The value of this rank, 0 = the largest; reorders `values`.
inline float LargestAt(std::span<float> values, size_t rank) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(rank), values.end(), std::greater<>());
  return values[rank];
}

// A lower bound of the k-th largest logit of a row, k >= 1: the k-th largest maximum of a block, so that only blocks
// holding candidates are searched. `scratch` [block_largest.size()].
inline float TopKBound(std::span<const float> block_largest, size_t k, float* scratch) {
  if (k > block_largest.size()) return -std::numeric_limits<float>::infinity();
  std::copy(block_largest.begin(), block_largest.end(), scratch);
  return LargestAt({scratch, block_largest.size()}, k - 1);
}

}  // namespace df::kernels::cpu

#endif  // DELTAFOLD_KERNELS_CPU_TOP_K_H_
