// The machine's own limits, to be measured in the run whose figures are compared with them (benchmarks only). Each runs
// on all threads of the context with the current target's vectors, and keeps its results alive so that nothing can be
// left out.
#ifndef DELTAFOLD_KERNELS_LIMITS_H_
#define DELTAFOLD_KERNELS_LIMITS_H_

#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "tensor/kernel_context.h"

namespace df::kernels {

// Reads all of `memory` (64-byte aligned, a multiple of 256 bytes) in order, each thread its part; returns a digest.
uint64_t ReadMemory(KernelContext& context, Bytes memory);

// `n_steps` of independent f32 multiply-adds in registers; returns the FLOPs done: a multiply-add counts 2.
double MultiplyAdd(KernelContext& context, size_t n_steps);

// `n_steps` of independent 16-entry byte look-ups in registers (pshufb, tbl): the peak of lookup kernels; returns the
// bytes looked up.
double ShuffleBytes(KernelContext& context, size_t n_steps);

// `n_steps` of independent 4-wide dot products of bytes into 32-bit sums (vpdpbusd), the peak of int8 kernels; returns
// the operations done, a multiply-add of two bytes counts 2. 0 where the processor has no such instruction.
double DotBytes(KernelContext& context, size_t n_steps);

// `n_steps` of independent dot products of bf16 pairs into f32 sums (vdpbf16ps); returns the FLOPs done, a multiply-add
// counts 2. 0 where the processor has no such instruction.
double DotBf16(KernelContext& context, size_t n_steps);

}  // namespace df::kernels

#endif  // DELTAFOLD_KERNELS_LIMITS_H_
