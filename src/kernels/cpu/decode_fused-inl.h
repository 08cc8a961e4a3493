// Decode of one or two rows on cores whose own prefetcher brings weights faster than software can ask for them.
//
//   for 8 columns: 4 pairs of both tiles x every row, then the octet of every row's signs
//
// A core has few buffers for lines that software asks for (24 on a Zen 4: 20 GB/s), its second level has more for what
// its prefetcher foresees (29 GB/s), but that follows plain reads alone and starts anew after a pause. So nothing is
// asked for here, and signs never take longer than some 20 cycles between two reads of weights. Sums stay in registers
// for a block of columns, which is why there are two rows at most.
//
// Operations on a row are those of decode-inl.h in the same order: its bits are the same.
#if defined(DELTAFOLD_KERNELS_CPU_DECODE_FUSED_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAFOLD_KERNELS_CPU_DECODE_FUSED_INL_H_
#undef DELTAFOLD_KERNELS_CPU_DECODE_FUSED_INL_H_
#else
#define DELTAFOLD_KERNELS_CPU_DECODE_FUSED_INL_H_
#endif

#include <algorithm>
#include <array>

#include "kernels/cpu/block_product-inl.h"
#include "kernels/cpu/core.h"
#include "kernels/cpu/linear_plan.h"
#include "kernels/cpu/sign_tables-inl.h"

HWY_BEFORE_NAMESPACE();
namespace df::kernels::cpu::HWY_NAMESPACE {

// Sums of one unit while it is worked on.
struct UnitSums {
  float* base = nullptr;      // [rows of the set][kUnitRows]
  float* signs = nullptr;     // [items of the set][kUnitRows], not yet scaled
  uint8_t* staged = nullptr;  // [kStagedBytes] of a mapped weight: the block at hand
};

#if HWY_TARGET == HWY_AVX3

inline constexpr size_t kMaxFusedRows = 2;

// One sign block of one unit.
struct FusedArgs {
  const uint8_t* weights = nullptr;  // first pair of the block, first tile
  size_t tile_bytes = 0;
  size_t n_columns = 0;      // a multiple of kBlockColumns
  const float* x = nullptr;  // [n_columns][rows]
  float* sums = nullptr;     // [rows][kUnitRows]
  SignArgs signs[kMaxFusedRows];
};

// acc += 8 columns of both tiles.
template <size_t kRows, size_t kVectors>
HWY_INLINE void AddWeightOctet(const FusedArgs& args, const uint8_t* HWY_RESTRICT w, const float* HWY_RESTRICT x,
                               FloatVec (&acc)[kRows][kVectors]) {
  constexpr size_t kOfTile = kTileRows / kLanes;
  const FloatTag d;
  DF_UNROLL
  for (size_t pair = 0; pair < kOctet / 2; ++pair, w += Bf16Tile::kPairBytes, x += 2 * kRows) {
    FloatVec even[kVectors], odd[kVectors];
    DF_UNROLL
    for (size_t v = 0; v < kVectors; ++v) {
      const UintVec both =
          Bf16Tile::Both(w + v / kOfTile * args.tile_bytes + v % kOfTile * kLanes * Bf16Tile::kRowBytes);
      even[v] = hn::BitCast(d, hn::ShiftLeft<16>(both));
      odd[v] = hn::BitCast(d, hn::And(both, hn::Set(UintTag(), 0xFFFF0000u)));
    }
    AddColumn<kRows, kVectors>(even, x, acc);
    AddColumn<kRows, kVectors>(odd, x + kRows, acc);
  }
}

template <class Signs>
HWY_INLINE void AddSignOctet(const SignArgs& args, size_t octet, typename Signs::Sums& sums) {
  const uint8_t* tables = args.tables + octet * Signs::kOctetBytes + kTablesAheadBytes;
  DF_UNROLL
  for (size_t line = 0; line < Signs::kOctetBytes; line += 64) __builtin_prefetch(tables + line, 0, 3);
  Signs::AddOctet(args, octet, sums);
}

// Adds the block's products to the rows' sums; those of the signs of item i are left in states[i].
template <class Signs, size_t kRows, size_t kItems>
HWY_NOINLINE void FusedBlock(const FusedArgs& args, typename Signs::State* states) {
  constexpr size_t kVectors = kUnitRows / kLanes;
  const FloatTag d;
  std::array<typename Signs::Sums, std::max<size_t>(1, kItems)> signs;
  DF_UNROLL
  for (size_t i = 0; i < kItems; ++i) Signs::LoadSums(states[i], signs[i]);
  for (size_t column = 0; column < args.n_columns; column += kBlockColumns) {
    FloatVec acc[kRows][kVectors];
    DF_UNROLL
    for (size_t g = 0; g < kRows; ++g) {
      DF_UNROLL
      for (size_t v = 0; v < kVectors; ++v) acc[g][v] = hn::Zero(d);
    }
    for (size_t k = column; k < column + kBlockColumns; k += kOctet) {
      AddWeightOctet<kRows, kVectors>(args, args.weights + k / 2 * Bf16Tile::kPairBytes, args.x + k * kRows, acc);
      DF_UNROLL
      for (size_t i = 0; i < kItems; ++i) AddSignOctet<Signs>(args.signs[i], k / kOctet, signs[i]);
    }
    DF_UNROLL
    for (size_t g = 0; g < kRows; ++g) {
      DF_UNROLL
      for (size_t v = 0; v < kVectors; ++v) {
        float* to = args.sums + g * kUnitRows + v * kLanes;
        hn::StoreU(hn::Add(hn::LoadU(d, to), acc[g][v]), d, to);
      }
    }
  }
  DF_UNROLL
  for (size_t i = 0; i < kItems; ++i) Signs::StoreSums(signs[i], states[i]);
}

// An item's signs from column k on.
template <class Signs>
inline SignArgs FusedSigns(const SignItem& item, size_t first_tile, size_t d_in, size_t k, size_t n_columns) {
  const size_t n_octets = d_in / kOctet;
  const uint8_t* block = item.tables + k / kSignBlockColumns * kSignTableBytes<Signs>;
  SignArgs args;
  args.bits = item.plane->bits.data() + (first_tile * n_octets + k / kOctet) * kTileRows;
  args.next_tile = n_octets * kTileRows;
  args.n_octets = n_columns / kOctet;
  args.tables = block + Signs::kBlockBytes;
  args.block = block;
  return args;
}

template <class Signs, size_t kRows, size_t kItems>
inline void FusedUnit(const LinearPlan& plan, const LinearSet& set, size_t first_tile, const UnitSums& sums) {
  const PackedWeight& weight = *set.weight;
  typename Signs::State states[kMaxFusedRows];
  for (size_t k = 0; k < plan.d_in; k += kSignBlockColumns) {
    FusedArgs args;
    args.weights = weight.tiles.data() + first_tile * weight.tile_bytes() + k / 2 * Bf16Tile::kPairBytes;
    args.tile_bytes = weight.tile_bytes();
    args.n_columns = std::min(kSignBlockColumns, plan.d_in - k);
    args.x = set.groups[0].x + k * kRows;
    args.sums = sums.base;
    for (size_t i = 0; i < kItems; ++i) {
      args.signs[i] = FusedSigns<Signs>(set.items[i], first_tile, plan.d_in, k, args.n_columns);
    }
    FusedBlock<Signs, kRows, kItems>(args, states);
    for (size_t i = 0; i < kItems; ++i) Signs::Finish(args.signs[i], states[i], sums.signs + i * kUnitRows);
  }
}

// Whole blocks of columns and two tiles of bf16: what is left over is decode-inl.h's.
inline bool CanFuse(const LinearPlan& plan, const LinearSet& set, size_t first_tile) {
  if (!ThisCore().prefetches_streams || set.groups.size() != 1 || set.weight->dtype != DType::kBf16) return false;
  if (set.weight->IsMapped()) return false;
  if (plan.d_in % kBlockColumns != 0 || first_tile + kUnitTiles > set.weight->n_tiles()) return false;
  return std::all_of(set.items.begin(), set.items.end(),
                     [&](const SignItem& item) { return first_tile + kUnitTiles <= item.n_tiles; });
}

// Does one unit of a set if this is the way for it; sums are zero on entry.
template <class Signs>
inline bool DecodeFused(const LinearPlan& plan, const LinearSet& set, size_t first_tile, const UnitSums& sums) {
  if (!CanFuse(plan, set, first_tile)) return false;
  const size_t n_rows = set.rows.size(), n_items = set.items.size();
  if (n_rows == 1 && n_items == 0) return FusedUnit<Signs, 1, 0>(plan, set, first_tile, sums), true;
  if (n_rows == 1 && n_items == 1) return FusedUnit<Signs, 1, 1>(plan, set, first_tile, sums), true;
  if (n_rows == 2 && n_items == 0) return FusedUnit<Signs, 2, 0>(plan, set, first_tile, sums), true;
  if (n_rows == 2 && n_items == 1) return FusedUnit<Signs, 2, 1>(plan, set, first_tile, sums), true;
  if (n_rows == 2 && n_items == 2) return FusedUnit<Signs, 2, 2>(plan, set, first_tile, sums), true;
  return false;
}

#else

template <class Signs>
inline bool DecodeFused(const LinearPlan&, const LinearSet&, size_t, const UnitSums&) {
  return false;
}

#endif

}  // namespace df::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DELTAFOLD_KERNELS_CPU_DECODE_FUSED_INL_H_
