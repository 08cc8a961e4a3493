#include "kernels/ref/row_norms.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace df::kernels::ref {
namespace {

void AddStart(const PackedWeight& weight, const PackedDelta& delta, size_t row, std::span<double> w) {
  if (delta.rows) {
    const auto& index = delta.rows->index;
    const auto found = std::lower_bound(index.begin(), index.end(), static_cast<int32_t>(row));
    if (found != index.end() && static_cast<size_t>(*found) == row) {
      const auto i = static_cast<size_t>(found - index.begin());
      for (size_t k = 0; k < w.size(); ++k) w[k] = delta.rows->values.At(i, k);
      return;
    }
  }
  for (size_t k = 0; k < w.size(); ++k) {
    w[k] = row < weight.d_out ? weight.At(row, k) : 0.0F;
    for (const PackedPlane& plane : delta.planes) {
      const double scale = plane.col_scale.empty() ? 1.0F : plane.col_scale[k];
      w[k] += plane.row_scale[row] * scale * plane.Sign(row, k);
    }
  }
  const size_t place = delta.byte_rows ? delta.byte_rows->Find(row) : 0;
  if (!delta.byte_rows || place == delta.byte_rows->index.size()) return;
  const double step = delta.byte_rows->step[place];
  for (size_t k = 0; k < w.size(); ++k) w[k] += step * delta.byte_rows->values.At(place, k);
}

}  // namespace

void RowNorms(KernelContext& context, const PackedWeight& base, const PackedDelta& delta, std::span<float> norms) {
  const PackedWeight& weight = delta.raw ? *delta.raw : base;
  context.pool.ParallelFor(norms.size(), 1, [&](size_t begin, size_t end, size_t /*thread*/) {
    std::vector<double> w(delta.d_in);
    for (size_t row = begin; row < end; ++row) {
      AddStart(weight, delta, row, w);
      for (const PackedLowRank& pair : delta.low_rank) {
        for (size_t j = 0; j < pair.rank; ++j) {
          const double factor = double{pair.scale} * pair.b.At(row, j);
          for (size_t k = 0; k < w.size(); ++k) w[k] += factor * pair.a.At(j, k);
        }
      }
      double sum = 0;
      for (const double value : w) sum += value * value;
      norms[row] = static_cast<float>(std::sqrt(sum));
    }
  });
}

}  // namespace df::kernels::ref
