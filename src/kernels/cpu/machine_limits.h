// Highway implementation of machine_limits.h, for the vector target in force.
#ifndef DELTAFOLD_KERNELS_CPU_MACHINE_LIMITS_H_
#define DELTAFOLD_KERNELS_CPU_MACHINE_LIMITS_H_

#include "kernels/machine_limits.h"

namespace df::kernels::cpu {

MachineLimits MeasureMachineLimits(KernelContext& context);

}  // namespace df::kernels::cpu

#endif  // DELTAFOLD_KERNELS_CPU_MACHINE_LIMITS_H_
