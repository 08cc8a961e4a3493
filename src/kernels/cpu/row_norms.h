// Highway implementation of row_norms.h, for the vector target in force.
#ifndef DELTAFOLD_KERNELS_CPU_ROW_NORMS_H_
#define DELTAFOLD_KERNELS_CPU_ROW_NORMS_H_

#include <span>

#include "kernels/row_norms.h"

namespace df::kernels::cpu {

// norms [delta.d_out]
void RowNorms(KernelContext& context, const PackedWeight& base, const PackedDelta& delta, std::span<float> norms);

}  // namespace df::kernels::cpu

#endif  // DELTAFOLD_KERNELS_CPU_ROW_NORMS_H_
