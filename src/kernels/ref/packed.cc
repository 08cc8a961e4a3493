#include "kernels/ref/packed.h"

#include <cstring>

#include "kernels/packed.h"

namespace df::kernels::ref {
namespace {

// offset(row, col): where the tile keeps that element, in elements.
template <size_t kBytes, typename Offset>
void Scatter(const TileSource& source, size_t n_cols, uint8_t* tile, const Offset& offset) {
  for (size_t row = 0; row < source.n_rows; ++row) {
    const uint8_t* from = source.rows + row * source.stride_bytes;
    for (size_t col = 0; col < n_cols; ++col) {
      std::memcpy(tile + offset(row, col) * kBytes, from + col * kBytes, kBytes);
    }
  }
}

size_t ColumnMajor(size_t row, size_t col) { return col * kTileRows + row; }
size_t PairMajor(size_t row, size_t col) { return (col / 2 * kTileRows + row) * 2 + col % 2; }

}  // namespace

void PackTileBf16(const TileSource& source, size_t d_in, uint8_t* tile) { Scatter<2>(source, d_in, tile, PairMajor); }
void PackTileF16(const TileSource& source, size_t d_in, uint8_t* tile) { Scatter<2>(source, d_in, tile, ColumnMajor); }
void PackTileF32(const TileSource& source, size_t d_in, uint8_t* tile) { Scatter<4>(source, d_in, tile, ColumnMajor); }
void PackTileSigns(const TileSource& source, size_t n_bytes, uint8_t* tile) {
  Scatter<1>(source, n_bytes, tile, ColumnMajor);
}

}  // namespace df::kernels::ref
