#include "kernels/ref/embed.h"

#include <algorithm>

namespace df::kernels::ref {
namespace {

float BaseAt(const PackedWeight& table, const PackedDelta& delta, size_t row, size_t col) {
  if (delta.raw) return delta.raw->At(row, col);
  return row < table.d_out ? table.At(row, col) : 0.0F;
}

float ValueAt(const PackedWeight& table, const PackedDelta& delta, size_t row, size_t col) {
  const float gain = delta.gain_row.empty() ? 1.0F : delta.gain_row[row];
  if (delta.rows) {
    const auto& index = delta.rows->index;
    const auto found = std::lower_bound(index.begin(), index.end(), static_cast<int32_t>(row));
    if (found != index.end() && static_cast<size_t>(*found) == row) {
      return gain * delta.rows->values.At(static_cast<size_t>(found - index.begin()), col);
    }
  }
  float value = BaseAt(table, delta, row, col);
  for (const PackedPlane& plane : delta.planes) {
    const float col_scale = plane.col_scale.empty() ? 1.0F : plane.col_scale[col];
    value += plane.Sign(row, col) * (plane.row_scale[row] * col_scale);
  }
  return gain * value;
}

}  // namespace

void Embed(KernelContext& /*context*/, const PackedWeight& table, std::span<const LinearSegment> segments,
           std::span<const int32_t> tokens, MatView<float> out) {
  for (const LinearSegment& segment : segments) {
    for (size_t i = segment.begin; i < segment.end; ++i) {
      const auto token = static_cast<size_t>(tokens[i]);
      for (size_t col = 0; col < table.d_in; ++col) {
        out.Row(i)[col] = segment.delta == nullptr ? table.At(token, col) : ValueAt(table, *segment.delta, token, col);
      }
    }
  }
}

}  // namespace df::kernels::ref
