// Scalar oracle of row_norms.h: sums in f64.
#ifndef DELTAFOLD_KERNELS_REF_ROW_NORMS_H_
#define DELTAFOLD_KERNELS_REF_ROW_NORMS_H_

#include <span>

#include "kernels/row_norms.h"

namespace df::kernels::ref {

// norms [delta.d_out]
void RowNorms(KernelContext& context, const PackedWeight& base, const PackedDelta& delta, std::span<float> norms);

}  // namespace df::kernels::ref

#endif  // DELTAFOLD_KERNELS_REF_ROW_NORMS_H_
