// limits.h on one thread, with the chosen vector target.
#ifndef DELTAFOLD_KERNELS_CPU_LIMITS_H_
#define DELTAFOLD_KERNELS_CPU_LIMITS_H_

#include <cstddef>
#include <cstdint>

#include "base/bytes.h"

namespace df::kernels::cpu {

uint64_t ReadMemory(Bytes memory);
double MultiplyAdd(size_t n_steps);
double ShuffleBytes(size_t n_steps);

}  // namespace df::kernels::cpu

#endif  // DELTAFOLD_KERNELS_CPU_LIMITS_H_
