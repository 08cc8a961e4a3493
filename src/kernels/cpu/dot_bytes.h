// The byte dot product of VNNI, which Highway 1.0 does not express: for its peak alone (limits.h).
#ifndef DELTAFOLD_KERNELS_CPU_DOT_BYTES_H_
#define DELTAFOLD_KERNELS_CPU_DOT_BYTES_H_

#include <cstddef>

namespace df::kernels::cpu {

// On the calling thread, 512 bits wide where the processor has AVX-512 VNNI; returns the operations done, 0 without it.
double DotBytes(size_t n_steps);

}  // namespace df::kernels::cpu

#endif  // DELTAFOLD_KERNELS_CPU_DOT_BYTES_H_
