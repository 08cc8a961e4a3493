#include "kernels/cpu/embed.h"

#include <algorithm>
#include <type_traits>

#include "base/float16.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/embed.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "hwy/highway.h"
#include "kernels/cpu/dot-inl.h"
#include "kernels/cpu/simd-inl.h"

#ifndef DELTAFOLD_KERNELS_CPU_EMBED_TYPES_
#define DELTAFOLD_KERNELS_CPU_EMBED_TYPES_

namespace df::kernels::cpu {

// A row of a P32 matrix.
struct TableRow {
  const uint8_t* first = nullptr;  // element of column 0
  size_t pair_bytes = 0;           // from one pair of columns to the next
  size_t n_cols = 0;
};

}  // namespace df::kernels::cpu

#endif  // DELTAFOLD_KERNELS_CPU_EMBED_TYPES_

HWY_BEFORE_NAMESPACE();
namespace df::kernels::cpu::HWY_NAMESPACE {

// A row of a P32 matrix lies strided, a cache line or two a pair of columns: the time is that of the misses. They are
// asked for so many pairs ahead; 64 lines are as many as the core has under way.
constexpr size_t kPairsAhead = 64;

template <typename T>
HWY_INLINE void PrefetchPairs(const TableRow& row, size_t pair, size_t n) {
  constexpr size_t kLines = std::is_same_v<T, Bf16> ? 1 : 2;
  for (size_t i = kLines * pair; i < kLines * (pair + n); ++i) {
    __builtin_prefetch(row.first + i * (row.pair_bytes / kLines), 0, 0);
  }
}

// Words `stride` apart, from `from` on.
HWY_INLINE UintVec GatherWords(const uint8_t* from, size_t stride) {
  const UintTag d;
  const hn::RebindToSigned<UintTag> di;
  const auto offsets = hn::Mul(hn::Iota(di, 0), hn::Set(di, static_cast<int32_t>(stride)));
  return hn::GatherOffset(d, reinterpret_cast<const uint32_t*>(from), offsets);
}

// f32 of two vectors of columns from `pair` on. bf16: a word holds a pair.
HWY_INLINE void StorePairs(const TableRow& row, size_t pair, const Bf16* /*type*/, float* HWY_RESTRICT out) {
  const FloatTag d;
  const UintTag du;
  const auto words = GatherWords(row.first + pair * row.pair_bytes, row.pair_bytes);
  const auto even = hn::BitCast(d, hn::ShiftLeft<16>(words));
  const auto odd = hn::BitCast(d, hn::And(words, hn::Set(du, 0xFFFF0000u)));
  hn::StoreInterleaved2(even, odd, d, out);
}

// f32: the columns of a pair lie half of it apart.
HWY_INLINE void StorePairs(const TableRow& row, size_t pair, const float* /*type*/, float* HWY_RESTRICT out) {
  const FloatTag d;
  const uint8_t* from = row.first + pair * row.pair_bytes;
  const size_t column_bytes = row.pair_bytes / 2;
  hn::StoreU(hn::BitCast(d, GatherWords(from, column_bytes)), d, out);
  hn::StoreU(hn::BitCast(d, GatherWords(from + kLanes * column_bytes, column_bytes)), d, out + kLanes);
}

// f16: a word holds the same column of two rows, of which the element is the lower or the upper.
HWY_INLINE void StorePairs(const TableRow& row, size_t pair, const F16* /*type*/, float* HWY_RESTRICT out) {
  const FloatTag d;
  const UintTag du;
  const hn::Rebind<uint16_t, FloatTag> d16;
  const hn::Rebind<hwy::float16_t, FloatTag> half;
  const size_t column_bytes = row.pair_bytes / 2;
  const size_t in_word = reinterpret_cast<uintptr_t>(row.first) % sizeof(uint32_t);
  const uint8_t* from = row.first - in_word + pair * row.pair_bytes;
  for (size_t i = 0; i < 2; ++i) {
    auto words = GatherWords(from + i * kLanes * column_bytes, column_bytes);
    words = in_word == 0 ? hn::And(words, hn::Set(du, 0xFFFFu)) : hn::ShiftRight<16>(words);
    const auto halves = hn::BitCast(half, hn::DemoteTo(d16, hn::BitCast(hn::RebindToSigned<UintTag>(), words)));
    hn::StoreU(hn::PromoteTo(d, halves), d, out + i * kLanes);
  }
}

template <typename T>
HWY_INLINE size_t ReadPairs(const TableRow& row, float* HWY_RESTRICT out) {
  const size_t n_pairs = row.n_cols / 2 / kLanes * kLanes;
  PrefetchPairs<T>(row, 0, std::min(kPairsAhead, n_pairs));
  for (size_t pair = 0; pair < n_pairs; pair += kLanes) {
    if (pair + kPairsAhead < n_pairs) PrefetchPairs<T>(row, pair + kPairsAhead, kLanes);
    StorePairs(row, pair, static_cast<const T*>(nullptr), out + 2 * pair);
  }
  return 2 * n_pairs;
}

// Whole vectors of pairs; returns how many columns that were.
size_t ReadTableRow(const TableRow& row, DType dtype, float* out) {
  switch (dtype) {
    case DType::kF32: return ReadPairs<float>(row, out);
    case DType::kF16: return ReadPairs<F16>(row, out);
    default: return ReadPairs<Bf16>(row, out);
  }
}

// out += size * sign for the 8 columns of a byte of bits.
HWY_INLINE void AddOctet(uint8_t byte, const float* sizes, float row_scale, float* HWY_RESTRICT out) {
  const hn::CappedTag<float, 8> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  alignas(64) static constexpr uint32_t kBits[8] = {1, 2, 4, 8, 16, 32, 64, 128};
  for (size_t i = 0; i < 8; i += hn::MaxLanes(d)) {
    const auto bit = hn::Load(du, kBits + i);
    const auto set = hn::Eq(hn::And(hn::Set(du, byte), bit), bit);
    auto size = hn::Set(d, row_scale);
    if (sizes != nullptr) size = hn::Mul(size, hn::LoadU(d, sizes + i));
    const auto change = hn::IfThenElse(hn::RebindMask(d, set), size, hn::Neg(size));
    hn::StoreU(hn::Add(hn::LoadU(d, out + i), change), d, out + i);
  }
}

// Signs of `n_octets` bytes, kTileRows apart.
void AddSignRow(const uint8_t* bits, size_t n_octets, const float* col_scale, float row_scale, float* out) {
  for (size_t i = 0; i < n_octets; ++i) {
    AddOctet(bits[i * kTileRows], col_scale == nullptr ? nullptr : col_scale + 8 * i, row_scale, out + 8 * i);
  }
}

// out += factor * row, whole vectors of it; returns how many columns that were.
template <class Row>
HWY_INLINE size_t AddMultiple(const uint8_t* row, size_t n, float factor, float* HWY_RESTRICT out) {
  const FloatTag d;
  size_t k = 0;
  for (; k + kLanes <= n; k += kLanes) {
    const auto sum = hn::MulAdd(Row::Load(row + k * Row::kBytes), hn::Set(d, factor), hn::LoadU(d, out + k));
    hn::StoreU(sum, d, out + k);
  }
  return k;
}

size_t AddMultipleOf(const uint8_t* row, DType dtype, size_t n, float factor, float* out) {
  switch (dtype) {
    case DType::kF32: return AddMultiple<F32Row>(row, n, factor, out);
    case DType::kF16: return AddMultiple<F16Row>(row, n, factor, out);
    case DType::kI8: return AddMultiple<I8Row>(row, n, factor, out);
    default: return AddMultiple<Bf16Row>(row, n, factor, out);
  }
}

}  // namespace df::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace df::kernels::cpu {
namespace {

HWY_EXPORT(ReadTableRow);
HWY_EXPORT(AddSignRow);
HWY_EXPORT(AddMultipleOf);

void ReadRow(const PackedWeight& weight, size_t row, float* out) {
  if (weight.IsMapped()) {
    const size_t row_bytes = weight.d_in * DTypeBytes(weight.dtype);
    ReadFloats(
        {.dtype = weight.dtype, .shape = {weight.d_in}, .bytes = weight.mapped.subspan(row * row_bytes, row_bytes)}, 0,
        {out, weight.d_in});
    return;
  }
  const uint8_t* tile = weight.tiles.data() + row / kTileRows * weight.tile_bytes();
  const size_t element_bytes = DTypeBytes(weight.dtype);
  const size_t step = weight.dtype == DType::kBf16 ? 2 * element_bytes : element_bytes;  // from row to row
  const size_t done = HWY_DYNAMIC_DISPATCH(ReadTableRow)(
      {.first = tile + row % kTileRows * step, .pair_bytes = 2 * kTileRows * element_bytes, .n_cols = weight.d_in},
      weight.dtype, out);
  for (size_t col = done; col < weight.d_in; ++col) out[col] = weight.At(row, col);
}

void AddPlane(const PackedPlane& plane, size_t row, size_t d_in, float* out) {
  const size_t sign_tile_bytes = SignRowBytes(d_in) * kTileRows;
  const uint8_t* bits = plane.bits.data() + row / kTileRows * sign_tile_bytes + row % kTileRows;
  const size_t n_octets = d_in / 8;
  HWY_DYNAMIC_DISPATCH(AddSignRow)
  (bits, n_octets, plane.col_scale.empty() ? nullptr : plane.col_scale.data(), plane.row_scale[row], out);
  for (size_t col = 8 * n_octets; col < d_in; ++col) out[col] += plane.At(row, col);
}

// out += factor * row `k`.
void AddRow(const RowMajorWeight& weight, size_t k, float factor, float* out) {
  const size_t done = HWY_DYNAMIC_DISPATCH(AddMultipleOf)(weight.Row(k), weight.dtype, weight.d_in, factor, out);
  for (size_t col = done; col < weight.d_in; ++col) out[col] += factor * weight.At(k, col);
}

void AddLowRank(const PackedLowRank& pair, size_t row, float* out) {
  for (size_t j = 0; j < pair.rank; ++j) AddRow(pair.a, j, pair.scale * pair.b.At(row, j), out);
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

void AddByteRow(const PackedByteRows& rows, size_t row, float* out) {
  const size_t place = rows.Find(row);
  if (place < rows.index.size()) AddRow(rows.values, place, rows.step[place], out);
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
    if (delta.byte_rows) AddByteRow(*delta.byte_rows, row, out);
  }
  for (const PackedLowRank& pair : delta.low_rank) AddLowRank(pair, row, out);
  if (delta.gain_row.empty()) return;
  for (size_t col = 0; col < table.d_in; ++col) out[col] *= delta.gain_row[row];
}

}  // namespace

void Embed(KernelContext& context, const PackedWeight& table, std::span<const LinearSegment> segments,
           std::span<const int32_t> tokens, MatView<float> out) {
  // A row is a cache line a pair of columns, or two.
  const size_t row_bytes = table.d_in / 2 * 2 * kAlignment;
  context.pool.ParallelFor(out.rows, GrainFor(row_bytes), [&](size_t begin, size_t end, size_t /*thread*/) {
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
#endif  // HWY_ONCE
