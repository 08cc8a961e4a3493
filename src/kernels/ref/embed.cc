#include "kernels/ref/embed.h"

#include <algorithm>

namespace df::kernels::ref {
namespace {

float BaseAt(const PackedWeight& table, const PackedDelta& delta, size_t row, size_t col) {
  if (delta.raw) return delta.raw->At(row, col);
  return row < table.d_out ? table.At(row, col) : 0.0F;
}

// Index of `row` among the replaced rows, or their number.
size_t FindReplaced(const PackedDelta& delta, size_t row) {
  const auto& index = delta.rows->index;
  const auto found = std::lower_bound(index.begin(), index.end(), static_cast<int32_t>(row));
  const bool is_there = found != index.end() && static_cast<size_t>(*found) == row;
  return static_cast<size_t>((is_there ? found : index.end()) - index.begin());
}

double ValueAt(const PackedWeight& table, const PackedDelta& delta, size_t row, size_t col) {
  double value = 0;
  const size_t replaced = delta.rows ? FindReplaced(delta, row) : 0;
  if (delta.rows && replaced < delta.rows->index.size()) {
    value = delta.rows->values.At(replaced, col);
  } else {
    value = BaseAt(table, delta, row, col);
    for (const PackedPlane& plane : delta.planes) {
      const double col_scale = plane.col_scale.empty() ? 1.0F : plane.col_scale[col];
      value += plane.Sign(row, col) * (plane.row_scale[row] * col_scale);
    }
    const size_t place = delta.byte_rows ? delta.byte_rows->Find(row) : 0;
    if (delta.byte_rows && place < delta.byte_rows->index.size()) {
      value += double{delta.byte_rows->step[place]} * delta.byte_rows->values.At(place, col);
    }
  }
  for (const PackedLowRank& pair : delta.low_rank) {
    for (size_t j = 0; j < pair.rank; ++j) value += double{pair.scale} * pair.b.At(row, j) * pair.a.At(j, col);
  }
  return delta.gain_row.empty() ? value : delta.gain_row[row] * value;
}

}  // namespace

void Embed(KernelContext& /*context*/, const PackedWeight& table, std::span<const LinearSegment> segments,
           std::span<const int32_t> tokens, MatView<float> out) {
  for (const LinearSegment& segment : segments) {
    for (size_t i = segment.begin; i < segment.end; ++i) {
      const auto token = static_cast<size_t>(tokens[i]);
      for (size_t col = 0; col < table.d_in; ++col) {
        out.Row(i)[col] = segment.delta == nullptr ? table.At(token, col)
                                                   : static_cast<float>(ValueAt(table, *segment.delta, token, col));
      }
    }
  }
}

}  // namespace df::kernels::ref
