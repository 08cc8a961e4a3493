// Weights as the kernels read them, and the packing from their stored form at load.
//
// P32 (base weights): output rows in tiles of 32, columns in pairs; padding is zero.
//   BF16      [ceil(d_out/32)][ceil(d_in/2)][32][2]   a vector lane is an output row and holds a pair of columns
//   F16, F32  [ceil(d_out/32)][ceil(d_in/2)][2][32]
// R32 (sign bits): [ceil(d_out/32)][ceil(d_in/8)][32] bytes: 32 rows x 8 columns per 32 bytes, bit i of a byte = column
//   8b+i, 1 = +1; padding rows and columns are zero bits, padding rows have zero scale.
// Few rows (LoRA's A, replaced rows, rows of bytes) stay row-major as stored: tiles of 32 would hold more padding than
// weights. All are one form for every CPU target.
//
// A base weight may also stay where it is stored, in a mapped file: kernels then make P32 of the block at hand.
#ifndef DELTAFOLD_KERNELS_PACKED_H_
#define DELTAFOLD_KERNELS_PACKED_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "tensor/dtype.h"
#include "tensor/kernel_context.h"
#include "tensor/linear_delta.h"
#include "tensor/mat.h"
#include "tensor/tensor_view.h"

namespace df::kernels {

inline constexpr size_t kTileRows = 32;

// A [d_out, d_in] matrix in P32, or as stored. Immutable once packed; thread-safe to read. Products have the same bits
// in both forms.
struct PackedWeight {
  DType dtype = DType::kBf16;  // kBf16, kF16 or kF32
  size_t d_out = 0;
  size_t d_in = 0;
  Buffer<uint8_t> tiles;  // P32; empty where the matrix is mapped
  Bytes mapped = {};      // [d_out, d_in] row after row at any alignment, of an owner that outlives this; else empty

  bool IsMapped() const { return !mapped.empty(); }

  size_t n_tiles() const { return (d_out + kTileRows - 1) / kTileRows; }
  size_t tile_bytes() const { return (d_in + 1) / 2 * 2 * kTileRows * DTypeBytes(dtype); }
  size_t bytes() const { return IsMapped() ? mapped.size() : tiles.size_bytes(); }
  // Element as f32: for the oracle and for single reads.
  float At(size_t row, size_t col) const;
  // Row as f32 into out [d_in].
  void ReadRow(size_t row, float* out) const;
};

// A [n_rows, d_in] matrix as stored, row after row.
struct RowMajorWeight {
  DType dtype = DType::kBf16;  // kBf16, kF16 or kF32; kI8 within PackedByteRows
  size_t n_rows = 0;
  size_t d_in = 0;
  Buffer<uint8_t> values;

  size_t bytes() const { return values.size_bytes(); }
  const uint8_t* Row(size_t row) const { return values.data() + row * d_in * DTypeBytes(dtype); }
  float At(size_t row, size_t col) const;
  void ReadRow(size_t row, float* out) const;  // out [d_in]
};

struct PackedPlane {
  size_t d_in = 0;
  Buffer<uint8_t> bits;     // R32
  Buffer<float> row_scale;  // [ceil(d_out/32)*32] scale * row scale, padding zero
  Buffer<float> col_scale;  // [d_in] or empty = ones

  // +1 or -1.
  float Sign(size_t row, size_t col) const {
    const uint8_t byte = bits[(row / kTileRows * ((d_in + 7) / 8) + col / 8) * kTileRows + row % kTileRows];
    return (byte >> (col % 8) & 1) != 0 ? 1.0F : -1.0F;
  }
  // The plane's own contribution to a weight: row_scale * col_scale * sign.
  float At(size_t row, size_t col) const {
    return row_scale[row] * (col_scale.empty() ? 1.0F : col_scale[col]) * Sign(row, col);
  }
};

// Factors of one LoRA pair in their stored element type.
struct PackedLowRank {
  size_t rank = 0;
  float scale = 1.0F;
  RowMajorWeight a;  // [r, d_in]
  PackedWeight b;    // [d_out, r]
};

struct PackedRows {
  std::vector<int32_t> index;  // [k] strictly increasing
  RowMajorWeight values;       // [k, d_in]
};

// Rows index[k] of the change are step[k] times values' row k.
struct PackedByteRows {
  std::vector<int32_t> index;  // [k] strictly increasing
  RowMajorWeight values;       // [k, d_in] kI8
  Buffer<float> step;          // [k]

  // Where `row` stands in `index`, or its size.
  size_t Find(size_t row) const;
};

// The kernel form of a LinearDelta: owns its memory, the stored bytes may go.
struct PackedDelta {
  size_t d_out = 0;
  size_t d_in = 0;
  std::vector<PackedPlane> planes;
  std::vector<PackedLowRank> low_rank;
  std::optional<PackedRows> rows;
  std::optional<PackedByteRows> byte_rows;
  std::optional<PackedWeight> raw;
  Buffer<float> gain_row;  // [d_out] or empty
  Buffer<float> bias;      // [d_out] or empty = the base's

  bool IsBase() const {
    return planes.empty() && low_rank.empty() && !rows && !byte_rows && !raw && gain_row.empty() && bias.empty();
  }
  // Everything that a product reads.
  size_t bytes() const;
  // Memory held: without what was borrowed.
  size_t owned_bytes() const;
};

// The same delta on the same memory: `delta` must outlive it. What a variant on top of another is made from.
PackedDelta Borrow(const PackedDelta& delta);

// PackDelta(delta).bytes() without packing: from shapes and dtypes alone.
size_t PackedBytes(const LinearDelta& delta);
// The size of an arena that has room for PackDelta(delta): each buffer begins at a line of its own.
size_t ArenaBytes(const LinearDelta& delta);

// The delta of a variant that leaves `weight` as it is.
inline PackedDelta UnchangedDelta(const PackedWeight& weight) {
  PackedDelta delta;
  delta.d_out = weight.d_out;
  delta.d_in = weight.d_in;
  return delta;
}

// Packs a stored [d_out, d_in] F32, BF16 or F16 tensor. Streams: reads the source once, threads split the tiles.
PackedWeight PackWeight(KernelContext& context, const TensorView& weight);
// As above, giving mapped pages back through `release` (called with parts of weight.bytes already consumed, in order).
PackedWeight PackWeight(KernelContext& context, const TensorView& weight, void (*release)(void* user, Bytes part),
                        void* user);

// The stored tensor itself: nothing is read or copied.
PackedWeight MapWeight(const TensorView& weight);

// As PackWeight without tiling: one copy of the stored bytes.
RowMajorWeight PackRowMajor(const TensorView& weight);

// The delta must be consistent (format/ and codec/ guarantee shapes) and without `magnitude`, whose gain the caller
// makes from row_norms.h; scales are multiplied into f32. The memory is `arena`'s, which then must outlive the result;
// null: each buffer has its own.
PackedDelta PackDelta(KernelContext& context, const LinearDelta& delta, Arena* arena = nullptr);

}  // namespace df::kernels

#endif  // DELTAFOLD_KERNELS_PACKED_H_
