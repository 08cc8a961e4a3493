// Weights as the kernels read them, and the packing from their stored form at load.
//
// P32 (base weights): output rows in tiles of 32, rows padded with zeros.
//   BF16      [ceil(d_out/32)][ceil(d_in/2)][32][2]   a vector lane is an output row, each lane a pair of columns
//   F16, F32  [ceil(d_out/32)][d_in][32]
// R32 (sign bits): [ceil(d_out/32)][ceil(d_in/8)][32] bytes: 32 rows x 8 columns per 32 bytes, bit i of a byte = column
//   8b+i, 1 = +1; padding rows and columns are zero bits with zero scale.
// Both are one form for every CPU target.
#ifndef DELTAFOLD_KERNELS_PACKED_H_
#define DELTAFOLD_KERNELS_PACKED_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "tensor/kernel_context.h"
#include "tensor/linear_delta.h"
#include "tensor/mat.h"
#include "tensor/tensor_view.h"

namespace df::kernels {

inline constexpr size_t kTileRows = 32;

// A [d_out, d_in] matrix in P32. Immutable once packed; thread-safe to read.
struct PackedWeight {
  DType dtype = DType::kBf16;  // kBf16, kF16 or kF32
  size_t d_out = 0;
  size_t d_in = 0;
  Buffer<uint8_t> tiles;

  size_t bytes() const { return tiles.size_bytes(); }
  // Element as f32: for the oracle and for single reads.
  float At(size_t row, size_t col) const;
};

struct PackedPlane {
  Buffer<uint8_t> bits;     // R32
  Buffer<float> row_scale;  // [ceil(d_out/32)*32] scale * row scale, padding zero
  Buffer<float> col_scale;  // [d_in] or empty = ones
};

// Factors of one LoRA pair in the layout of the kernels' choosing, kept in the stored element type where that is 16 bit.
struct PackedLowRank {
  size_t rank = 0;
  float scale = 1.0F;
  PackedWeight a;  // [r, d_in] (its own, unpadded layout is up to kernels/cpu; see linear.h)
  PackedWeight b;  // [d_out, r]
};

struct PackedRows {
  std::vector<int32_t> index;  // [k] strictly increasing
  PackedWeight values;         // [k, d_in]
};

// The kernel form of a LinearDelta: owns its memory, the stored bytes may go.
struct PackedDelta {
  size_t d_out = 0;
  size_t d_in = 0;
  std::vector<PackedPlane> planes;
  std::vector<PackedLowRank> low_rank;
  std::optional<PackedRows> rows;
  std::optional<PackedWeight> raw;
  Buffer<float> gain_row;  // [d_out] or empty
  Buffer<float> bias;      // [d_out] or empty = the base's

  bool IsBase() const {
    return planes.empty() && low_rank.empty() && !rows && !raw && gain_row.empty() && bias.empty();
  }
  // Memory held, everything counted.
  size_t bytes() const;
};

// Packs a stored [d_out, d_in] F32, BF16 or F16 tensor. Streams: reads the source once, threads split the tiles.
PackedWeight PackWeight(KernelContext& context, const TensorView& weight);
// As above, giving mapped pages back through `release` (called with parts of weight.bytes already consumed, in order).
PackedWeight PackWeight(KernelContext& context, const TensorView& weight, void (*release)(void* user, Bytes part),
                        void* user);

// The delta must be consistent (format/ and codec/ guarantee shapes); scales are multiplied into f32.
PackedDelta PackDelta(KernelContext& context, const LinearDelta& delta);

}  // namespace df::kernels

#endif  // DELTAFOLD_KERNELS_PACKED_H_
