// Vector packing of full tiles (32 rows); same results as ref/packed.h. And of blocks of mapped weights, one at a time,
// as products come to them.
#ifndef DELTAFOLD_KERNELS_CPU_PACKED_H_
#define DELTAFOLD_KERNELS_CPU_PACKED_H_

#include "kernels/packed.h"
#include "kernels/ref/packed.h"

namespace df::kernels::cpu {

// source.n_rows is 32.
void PackTileBf16(const ref::TileSource& source, size_t d_in, uint8_t* tile);
void PackTileF16(const ref::TileSource& source, size_t d_in, uint8_t* tile);
void PackTileF32(const ref::TileSource& source, size_t d_in, uint8_t* tile);
void PackTileSigns(const ref::TileSource& source, size_t n_bytes, uint8_t* tile);

// Columns [first, first + n_cols) of a tile of a mapped weight; first is even.
struct MappedBlock {
  size_t tile = 0;
  size_t first = 0;
  size_t n_cols = 0;
  size_t next_tile = 0;  // read after this one: its rows are asked for where this one's end
};

// The block in P32, padding zero: [n_cols in pairs][32 rows] elements at `to`, aligned to kAlignment. Fetches what
// comes next in the rows.
void StageBlock(const PackedWeight& weight, const MappedBlock& block, uint8_t* to);

}  // namespace df::kernels::cpu

#endif  // DELTAFOLD_KERNELS_CPU_PACKED_H_
