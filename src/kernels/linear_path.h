// Which path of Linear (linear.h) the rows of a segment take: a function of what the call was given, shared by the
// kernels and by what counts their cost.
//
//   tables   base read once for all such rows, signs multiplied apart, by tables
//   panels   blocked products a segment, signs folded into the weights while they are unpacked
#ifndef DELTAFOLD_KERNELS_LINEAR_PATH_H_
#define DELTAFOLD_KERNELS_LINEAR_PATH_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/linear.h"
#include "tensor/kernel_context.h"

namespace df::kernels {

enum class LinearPath : uint8_t { kTables, kPanels };

// Thresholds in rows of one segment. As they stand: batch invariant, the phase decides alone.
struct LinearPaths {
  size_t min_folded_rows = SIZE_MAX;  // decode rows with signs of one variant, from here on by panels
  size_t max_unfolded_rows = 0;       // prefill rows, up to here by tables
};

LinearPaths PathsFor(const KernelOptions& options);
LinearPath PathOf(const LinearPaths& paths, const LinearSegment& segment);

// Whether the segment's rows and weights are rounded to bf16 (KernelOptions::prefill_dtype): those of a prompt, by
// panels.
bool RoundsToBf16(const KernelOptions& options, const LinearSegment& segment);

// Products of a row and a plane of signs by tables.
size_t CountSignProducts(const LinearPaths& paths, std::span<const LinearSegment> segments);

}  // namespace df::kernels

#endif  // DELTAFOLD_KERNELS_LINEAR_PATH_H_
