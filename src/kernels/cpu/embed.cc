#include "kernels/cpu/embed.h"

#include <algorithm>

#include "base/float16.h"

namespace df::kernels::cpu {
namespace {

// out[0..d_in) = row `row` of a P32 matrix: strided reads, one cache line a column or two.
template <typename T>
void ReadColumns(const PackedWeight& weight, size_t row, float* out) {
  const T* from = reinterpret_cast<const T*>(weight.tiles.data() + row / kTileRows * weight.tile_bytes());
  for (size_t col = 0; col < weight.d_in; ++col) out[col] = ToFloat(from[col * kTileRows + row % kTileRows]);
}

void ReadPairs(const PackedWeight& weight, size_t row, float* out) {
  const Bf16* from = reinterpret_cast<const Bf16*>(weight.tiles.data() + row / kTileRows * weight.tile_bytes());
  from += row % kTileRows * 2;
  for (size_t col = 0; col < weight.d_in; ++col) out[col] = ToFloat(from[col / 2 * 2 * kTileRows + col % 2]);
}

void ReadRow(const PackedWeight& weight, size_t row, float* out) {
  switch (weight.dtype) {
    case DType::kF32: ReadColumns<float>(weight, row, out); break;
    case DType::kF16: ReadColumns<F16>(weight, row, out); break;
    default: ReadPairs(weight, row, out); break;  // kBf16
  }
}

void AddPlane(const PackedPlane& plane, size_t row, size_t d_in, float* out) {
  const size_t sign_tile_bytes = SignRowBytes(d_in) * kTileRows;
  const uint8_t* bits = plane.bits.data() + row / kTileRows * sign_tile_bytes + row % kTileRows;
  const float row_scale = plane.row_scale[row];
  for (size_t col = 0; col < d_in; ++col) {
    const float size = plane.col_scale.empty() ? row_scale : row_scale * plane.col_scale[col];
    out[col] += (bits[col / 8 * kTileRows] >> (col % 8) & 1) != 0 ? size : -size;
  }
}

// The variant's own copy of row `row`, if it has one.
bool TryReplacedRow(const PackedDelta& delta, size_t row, float* out) {
  if (!delta.rows) return false;
  const auto& index = delta.rows->index;
  const auto found = std::lower_bound(index.begin(), index.end(), static_cast<int32_t>(row));
  if (found == index.end() || static_cast<size_t>(*found) != row) return false;
  const RowMajorWeight& values = delta.rows->values;
  const Bytes stored = {values.Row(static_cast<size_t>(found - index.begin())), values.d_in * DTypeBytes(values.dtype)};
  ReadFloats({.dtype = values.dtype, .shape = {values.d_in}, .bytes = stored}, 0, {out, values.d_in});
  return true;
}

void ReadVariantRow(const PackedWeight& table, const PackedDelta& delta, size_t row, float* out) {
  if (!TryReplacedRow(delta, row, out)) {
    if (delta.raw) {
      ReadRow(*delta.raw, row, out);
    } else if (row < table.d_out) {
      ReadRow(table, row, out);
    } else {
      std::fill_n(out, table.d_in, 0.0F);  // a row beyond the base's vocabulary stands in `rows`, or is all delta
    }
    for (const PackedPlane& plane : delta.planes) AddPlane(plane, row, table.d_in, out);
  }
  if (delta.gain_row.empty()) return;
  for (size_t col = 0; col < table.d_in; ++col) out[col] *= delta.gain_row[row];
}

}  // namespace

void Embed(KernelContext& context, const PackedWeight& table, std::span<const LinearSegment> segments,
           std::span<const int32_t> tokens, MatView<float> out) {
  context.pool.ParallelFor(out.rows, 1, [&](size_t begin, size_t end, size_t /*thread*/) {
    for (const LinearSegment& segment : segments) {
      for (size_t i = std::max(begin, segment.begin); i < std::min(end, segment.end); ++i) {
        const auto row = static_cast<size_t>(tokens[i]);
        if (segment.delta == nullptr) {
          ReadRow(table, row, out.Row(i));
        } else {
          ReadVariantRow(table, *segment.delta, row, out.Row(i));
        }
      }
    }
  });
}

}  // namespace df::kernels::cpu
