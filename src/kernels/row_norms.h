// Lengths of the rows of a variant's weight, without that weight ever existing: DoRA's denominator.
#ifndef DELTAFOLD_KERNELS_ROW_NORMS_H_
#define DELTAFOLD_KERNELS_ROW_NORMS_H_

#include "kernels/packed.h"
#include "tensor/kernel_context.h"

namespace df::kernels {

// out[r] = || W_r ||_2, with W_r the row that linear.h's formula multiplies by, before its gain:
//
//   (replaced row, or (raw or base) + planes + row of bytes) + sum_q scale_q B_q A_q
//
// f32 [delta.d_out], new memory. 32 rows by some columns exist at a time, per thread. Products are f32 fused
// multiply-adds, squares are summed in f64: |out - exact| <= (2 * planes + rank + 4) * 2^-24 * || the same formula over
// absolute values ||_2. A row that is all zeros gives exactly 0. NaN in, NaN out. One call at a time a context.
Buffer<float> RowNorms(KernelContext& context, const PackedWeight& base, const PackedDelta& delta);

}  // namespace df::kernels

#endif  // DELTAFOLD_KERNELS_ROW_NORMS_H_
