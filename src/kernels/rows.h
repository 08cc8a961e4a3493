// Whole rows moved between activation matrices.
#ifndef DELTAFOLD_KERNELS_ROWS_H_
#define DELTAFOLD_KERNELS_ROWS_H_

#include <cstddef>
#include <span>

#include "tensor/kernel_context.h"
#include "tensor/mat.h"

namespace df::kernels {

// out[i] = x[rows[i]]; x [n, d], out [rows.size(), d] f32, not aliasing; every entry of `rows` is below n.
void GatherRows(KernelContext& context, MatView<const float> x, std::span<const size_t> rows, MatView<float> out);

}  // namespace df::kernels

#endif  // DELTAFOLD_KERNELS_ROWS_H_
