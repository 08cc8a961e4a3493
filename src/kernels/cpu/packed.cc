#include "kernels/cpu/packed.h"

#include <algorithm>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/packed.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/packed.h"

#ifndef DELTAFOLD_KERNELS_CPU_PACKED_TYPES_
#define DELTAFOLD_KERNELS_CPU_PACKED_TYPES_

namespace df::kernels::cpu {

// The core's own prefetcher does not follow 32 rows. On a Zen 4 with 4096 bf16 columns a thread packs 0.86 of the speed
// of copying with it, 0.60 without; 64 and 128 bytes are too near, more gains nothing.
constexpr size_t kAheadBytes = 256;

// What to ask for while rows are read: their next lines and, where they end, the lines that are read after those.
struct RowsAhead {
  size_t left_bytes = 0;  // of a row, from the first byte that is read on
  size_t jump_bytes = 0;  // from a row's end to the beginning of the row that takes its place

  size_t BytesAt(size_t byte) const { return kAheadBytes + (byte + kAheadBytes < left_bytes ? 0 : jump_bytes); }
};

}  // namespace df::kernels::cpu

#endif  // DELTAFOLD_KERNELS_CPU_PACKED_TYPES_

HWY_BEFORE_NAMESPACE();
namespace df::kernels::cpu::HWY_NAMESPACE {

// Blocks of 128 bits on every target: transposing needs no wider shuffle, and memory is the limit.
using Words = hn::Full128<uint32_t>;
using BytesTag = hn::Full128<uint8_t>;

// A cache line of every row is read at once: rows lie powers of two apart and would evict each other's lines.
constexpr size_t kWordsPerLine = 16;

// 4 rows x 4 words -> 4 lines x 4 words.
HWY_INLINE void Transpose4x4(const uint8_t* const* from, size_t word, uint32_t* to, size_t to_stride) {
  const Words d;
  const auto load = [&](size_t row)
                        HWY_ATTR { return hn::LoadU(d, reinterpret_cast<const uint32_t*>(from[row]) + word); };
  const auto r0 = load(0), r1 = load(1), r2 = load(2), r3 = load(3);
  const hn::Repartition<uint64_t, Words> d64;
  const auto lo01 = hn::BitCast(d64, hn::InterleaveLower(d, r0, r1));
  const auto lo23 = hn::BitCast(d64, hn::InterleaveLower(d, r2, r3));
  const auto hi01 = hn::BitCast(d64, hn::InterleaveUpper(d, r0, r1));
  const auto hi23 = hn::BitCast(d64, hn::InterleaveUpper(d, r2, r3));
  hn::Store(hn::BitCast(d, hn::InterleaveLower(d64, lo01, lo23)), d, to);
  hn::Store(hn::BitCast(d, hn::InterleaveUpper(d64, lo01, lo23)), d, to + to_stride);
  hn::Store(hn::BitCast(d, hn::InterleaveLower(d64, hi01, hi23)), d, to + 2 * to_stride);
  hn::Store(hn::BitCast(d, hn::InterleaveUpper(d64, hi01, hi23)), d, to + 3 * to_stride);
}

// 32 rows of `n_words` 32-bit words -> [n_words / 16 * 16][32]; returns the number of words done.
size_t TransposeWords(const ref::TileSource& source, size_t n_words, const RowsAhead& ahead, uint32_t* to) {
  const size_t n_full = n_words / kWordsPerLine * kWordsPerLine;
  for (size_t word = 0; word < n_full; word += kWordsPerLine) {
    const size_t ahead_bytes = ahead.BytesAt(word * sizeof(uint32_t));
    for (size_t row = 0; row < kTileRows; row += 4) {
      const uint8_t* rows[4];
      for (size_t i = 0; i < 4; ++i) {
        rows[i] = source.rows + (row + i) * source.stride_bytes;
        __builtin_prefetch(rows[i] + word * sizeof(uint32_t) + ahead_bytes, 0, 2);  // into the second level
      }
      for (size_t i = 0; i < kWordsPerLine; i += 4) {
        Transpose4x4(rows, word + i, to + (word + i) * kTileRows + row, kTileRows);
      }
    }
  }
  return n_full;
}

// The columns from `col` on, by the oracle: `tile_bytes_done` are in place.
ref::TileSource From(const ref::TileSource& source, size_t n_bytes) {
  return {.rows = source.rows + n_bytes, .stride_bytes = source.stride_bytes, .n_rows = source.n_rows};
}

void PackBf16(const ref::TileSource& source, size_t d_in, const RowsAhead& ahead, uint8_t* tile) {
  const size_t done = TransposeWords(source, d_in / 2, ahead, reinterpret_cast<uint32_t*>(tile));
  ref::PackTileBf16(From(source, done * 4), d_in - done * 2, tile + done * 4 * kTileRows);
}

void PackF32(const ref::TileSource& source, size_t d_in, const RowsAhead& ahead, uint8_t* tile) {
  const size_t done = TransposeWords(source, d_in, ahead, reinterpret_cast<uint32_t*>(tile));
  ref::PackTileF32(From(source, done * 4), d_in - done, tile + done * 4 * kTileRows);
}

// As pairs first, then each line [32][2] -> [2][32].
void PackF16(const ref::TileSource& source, size_t d_in, const RowsAhead& ahead, uint8_t* tile) {
  const size_t done = TransposeWords(source, d_in / 2, ahead, reinterpret_cast<uint32_t*>(tile));
  const hn::Full128<uint16_t> d;
  auto* halves = reinterpret_cast<uint16_t*>(tile);
  for (size_t pair = 0; pair < done; ++pair, halves += 2 * kTileRows) {
    hn::Vec<decltype(d)> even[4], odd[4];
    DF_UNROLL
    for (size_t i = 0; i < 4; ++i) hn::LoadInterleaved2(d, halves + i * 16, even[i], odd[i]);
    DF_UNROLL
    for (size_t i = 0; i < 4; ++i) hn::Store(even[i], d, halves + i * 8);
    DF_UNROLL
    for (size_t i = 0; i < 4; ++i) hn::Store(odd[i], d, halves + kTileRows + i * 8);
  }
  ref::PackTileF16(From(source, done * 4), d_in - done * 2, tile + done * 4 * kTileRows);
}

// 16 rows x 16 bytes -> 16 lines x 16 bytes: four rounds of interleaving row i with row i + 8.
HWY_INLINE void Transpose16x16(const ref::TileSource& source, size_t row, size_t byte, uint8_t* to) {
  const BytesTag d;
  hn::Vec<BytesTag> a[16], b[16];
  DF_UNROLL
  for (size_t i = 0; i < 16; ++i) a[i] = hn::LoadU(d, source.rows + (row + i) * source.stride_bytes + byte);
  DF_UNROLL
  for (size_t round = 0; round < 4; ++round) {
    DF_UNROLL
    for (size_t i = 0; i < 8; ++i) {
      b[2 * i] = hn::InterleaveLower(d, a[i], a[i + 8]);
      b[2 * i + 1] = hn::InterleaveUpper(d, a[i], a[i + 8]);
    }
    DF_UNROLL
    for (size_t i = 0; i < 16; ++i) a[i] = b[i];
  }
  DF_UNROLL
  for (size_t i = 0; i < 16; ++i) hn::Store(a[i], d, to + i * kTileRows);
}

// Cache lines of 16 rows at a time, the next ones asked for: as TransposeWords.
void PackSigns(const ref::TileSource& source, size_t n_bytes, uint8_t* tile) {
  const size_t n_full = n_bytes / 16 * 16;
  const size_t n_lines = n_full / 64;
  for (size_t line = 0; line < n_lines; ++line) {
    for (size_t row = 0; row < kTileRows; row += 16) {
      for (size_t i = 0; i < 16; ++i) {
        __builtin_prefetch(source.rows + (row + i) * source.stride_bytes + line * 64 + kAheadBytes, 0, 2);
      }
      for (size_t byte = line * 64; byte < line * 64 + 64; byte += 16) {
        Transpose16x16(source, row, byte, tile + byte * kTileRows + row);
      }
    }
  }
  for (size_t byte = n_lines * 64; byte < n_full; byte += 16) {
    Transpose16x16(source, 0, byte, tile + byte * kTileRows);
    Transpose16x16(source, 16, byte, tile + byte * kTileRows + 16);
  }
  ref::PackTileSigns(From(source, n_full), n_bytes - n_full, tile + n_full * kTileRows);
}

}  // namespace df::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace df::kernels::cpu {
namespace {

// A whole tile: the next one's rows follow.
RowsAhead NextTile(const ref::TileSource& source, size_t row_bytes) {
  return {.left_bytes = row_bytes, .jump_bytes = (kTileRows - 1) * source.stride_bytes};
}

}  // namespace

HWY_EXPORT(PackBf16);
HWY_EXPORT(PackF16);
HWY_EXPORT(PackF32);
HWY_EXPORT(PackSigns);

void PackTileBf16(const ref::TileSource& source, size_t d_in, uint8_t* tile) {
  HWY_DYNAMIC_DISPATCH(PackBf16)(source, d_in, NextTile(source, d_in * 2), tile);
}
void PackTileF16(const ref::TileSource& source, size_t d_in, uint8_t* tile) {
  HWY_DYNAMIC_DISPATCH(PackF16)(source, d_in, NextTile(source, d_in * 2), tile);
}
void PackTileF32(const ref::TileSource& source, size_t d_in, uint8_t* tile) {
  HWY_DYNAMIC_DISPATCH(PackF32)(source, d_in, NextTile(source, d_in * 4), tile);
}
void PackTileSigns(const ref::TileSource& source, size_t n_bytes, uint8_t* tile) {
  HWY_DYNAMIC_DISPATCH(PackSigns)(source, n_bytes, tile);
}

void StageBlock(const PackedWeight& weight, const MappedBlock& block, uint8_t* to) {
  const size_t element_bytes = DTypeBytes(weight.dtype);
  const size_t row_bytes = weight.d_in * element_bytes;
  const size_t first_byte = block.first * element_bytes;
  const size_t row = block.tile * kTileRows;
  const ref::TileSource source = {.rows = weight.mapped.data() + row * row_bytes + first_byte,
                                  .stride_bytes = row_bytes,
                                  .n_rows = std::min(kTileRows, weight.d_out - row)};
  const bool is_full = source.n_rows == kTileRows;
  if (!is_full || block.n_cols % 2 != 0) std::memset(to, 0, (block.n_cols + 1) / 2 * 2 * kTileRows * element_bytes);
  const RowsAhead ahead = {.left_bytes = row_bytes - first_byte,
                           .jump_bytes = ((block.next_tile - block.tile) * kTileRows - 1) * row_bytes};
  switch (weight.dtype) {
    case DType::kBf16:
      return is_full ? HWY_DYNAMIC_DISPATCH(PackBf16)(source, block.n_cols, ahead, to)
                     : ref::PackTileBf16(source, block.n_cols, to);
    case DType::kF16:
      return is_full ? HWY_DYNAMIC_DISPATCH(PackF16)(source, block.n_cols, ahead, to)
                     : ref::PackTileF16(source, block.n_cols, to);
    default:
      return is_full ? HWY_DYNAMIC_DISPATCH(PackF32)(source, block.n_cols, ahead, to)
                     : ref::PackTileF32(source, block.n_cols, to);
  }
}

}  // namespace df::kernels::cpu
#endif  // HWY_ONCE
