// The packing of packed.h, one tile at a time, element by element: oracle, scalar target, and ragged last tiles.
#ifndef DELTAFOLD_KERNELS_REF_PACKED_H_
#define DELTAFOLD_KERNELS_REF_PACKED_H_

#include <cstddef>
#include <cstdint>

namespace df::kernels::ref {

// Stored rows, `stride_bytes` apart, of which `n_rows` <= 32 make the tile. `tile` is zeroed memory.
struct TileSource {
  const uint8_t* rows = nullptr;
  size_t stride_bytes = 0;
  size_t n_rows = 0;
};

void PackTileBf16(const TileSource& source, size_t d_in, uint8_t* tile);
void PackTileF16(const TileSource& source, size_t d_in, uint8_t* tile);
void PackTileF32(const TileSource& source, size_t d_in, uint8_t* tile);
// Canonical sign rows of `n_bytes` to R32.
void PackTileSigns(const TileSource& source, size_t n_bytes, uint8_t* tile);

}  // namespace df::kernels::ref

#endif  // DELTAFOLD_KERNELS_REF_PACKED_H_
