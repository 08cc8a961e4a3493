// The two limits of this machine that kernels are measured against: reading memory in sequence, and f32 multiply-add.
#ifndef DELTAFOLD_KERNELS_MACHINE_LIMITS_H_
#define DELTAFOLD_KERNELS_MACHINE_LIMITS_H_

#include "tensor/kernel_context.h"

namespace df::kernels {

struct MachineLimits {
  double read_bytes_per_second = 0;  // of 512 MB in huge pages, all threads of the context
  double flops_per_second = 0;       // f32 fused multiply-add in registers counts 2; of the current vector target
};

// Best of a few rounds in the caller's CPU time (which passes while it works or waits for the other threads, not while
// another process has its core), about half a second and 512 MB for its duration. For benchmarks, not for serving. Not
// for the scalar target, which has no limit of its own.
MachineLimits MeasureMachineLimits(KernelContext& context);

}  // namespace df::kernels

#endif  // DELTAFOLD_KERNELS_MACHINE_LIMITS_H_
