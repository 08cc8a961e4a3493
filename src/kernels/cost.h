// What a primitive has to move and compute at least: the denominators of every benchmark and of the planner.
#ifndef DELTAFOLD_KERNELS_COST_H_
#define DELTAFOLD_KERNELS_COST_H_

#include <span>

#include "kernels/linear.h"

namespace df::kernels {

struct Cost {
  double bytes = 0;  // read and written once
  double flops = 0;  // additions and multiplications

  Cost& operator+=(const Cost& other) {
    bytes += other.bytes;
    flops += other.flops;
    return *this;
  }
};

// One Linear call under `options`, by the paths that its segments take (linear_path.h). Bytes: the base once for the
// rows by tables and once for the rows by panels that see it plain; for every segment its own planes, pairs, rows and
// raw weights, and the base once more where planes are folded into it; x and y once. FLOPs: 2 a weight and row; signs
// by tables 1 for each four of them and row, exact or by 14 bits (the tables themselves, 16 / d_out of that, are not
// counted), folded ones 1 a weight and segment.
Cost LinearCost(const KernelOptions& options, const LinearWeight& base, std::span<const LinearSegment> segments);

// The segment's own weights, in bytes.
double DeltaBytes(const PackedDelta& delta);

}  // namespace df::kernels

#endif  // DELTAFOLD_KERNELS_COST_H_
