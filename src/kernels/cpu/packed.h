// Vector packing of full tiles (32 rows); same results as ref/packed.h.
#ifndef DELTAFOLD_KERNELS_CPU_PACKED_H_
#define DELTAFOLD_KERNELS_CPU_PACKED_H_

#include "kernels/ref/packed.h"

namespace df::kernels::cpu {

// source.n_rows is 32.
void PackTileBf16(const ref::TileSource& source, size_t d_in, uint8_t* tile);
void PackTileF16(const ref::TileSource& source, size_t d_in, uint8_t* tile);
void PackTileF32(const ref::TileSource& source, size_t d_in, uint8_t* tile);
void PackTileSigns(const ref::TileSource& source, size_t n_bytes, uint8_t* tile);

}  // namespace df::kernels::cpu

#endif  // DELTAFOLD_KERNELS_CPU_PACKED_H_
