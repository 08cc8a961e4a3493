#include "kernels/rows.h"

#include <cstring>

namespace df::kernels {

void GatherRows(KernelContext& context, MatView<const float> x, std::span<const size_t> rows, MatView<float> out) {
  context.pool.ParallelFor(rows.size(), GrainFor(2 * sizeof(float) * x.cols), [&](size_t begin, size_t end, size_t) {
    for (size_t i = begin; i < end; ++i) std::memcpy(out.Row(i), x.Row(rows[i]), x.cols * sizeof(float));
  });
}

}  // namespace df::kernels
