// The machine's own limits, to be measured in the run whose figures are compared with them (benchmarks only).
#ifndef DELTAFOLD_KERNELS_LIMITS_H_
#define DELTAFOLD_KERNELS_LIMITS_H_

#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "tensor/kernel_context.h"

namespace df::kernels {

// Reads all of `memory` (64-byte aligned, a multiple of 256 bytes) in order with the current target's vectors, each
// thread its part; returns a digest so that no read can be left out.
uint64_t ReadMemory(KernelContext& context, Bytes memory);

// Runs `n_steps` of independent f32 multiply-adds in registers on every thread and returns the FLOPs done.
double MultiplyAdd(KernelContext& context, size_t n_steps);

}  // namespace df::kernels

#endif  // DELTAFOLD_KERNELS_LIMITS_H_
