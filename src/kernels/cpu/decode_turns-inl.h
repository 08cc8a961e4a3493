// Decode on cores whose own prefetcher brings weights faster than software can ask for them into the first level: base
// and signs take turns, each long enough to run at its own speed.
//
//   for some units of outputs (a turn)
//     base   tile after tile, as the weights lie in memory: x every group of rows
//     signs  row after row: all the turn's units
//
// That prefetcher follows plain reads alone and starts anew after a pause, such as a row's signs between two reads of
// weights. One or two rows of the base leave the reading to it. More rows compute for long enough that software can
// ask, a block ahead and into the second level: the first has too few buffers for lines under way (24 on a Zen 4).
// While those rows compute, memory has time left for the signs' bits. So a Zen 3, whose prefetcher is weaker, takes
// turns from three rows on (core.h).
//
// Operations on a row are those of decode-inl.h in the same order: its bits are the same.
#if defined(DELTAFOLD_KERNELS_CPU_DECODE_TURNS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAFOLD_KERNELS_CPU_DECODE_TURNS_INL_H_
#undef DELTAFOLD_KERNELS_CPU_DECODE_TURNS_INL_H_
#else
#define DELTAFOLD_KERNELS_CPU_DECODE_TURNS_INL_H_
#endif

#include <algorithm>

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

// How much of a set is a turn.
struct TurnSize {
  size_t n_units = 1;
  size_t n_columns = 0;  // a multiple of kSignBlockColumns, or all
};

inline constexpr size_t kMaxTurnUnits = 8;
inline constexpr size_t kMaxUnaskedRows = 2;            // whose weights the core brings by itself
inline constexpr size_t kAheadBytes = size_t{8} << 10;  // how far ahead the others' weights are asked for

inline bool TakesTurns(const LinearSet& set) {
  return kLanes >= 8 && set.rows.size() >= ThisCore().min_turn_rows && !set.weight->IsMapped();
}

// Reading by the core wants long turns: cut by columns so that x stays in the first level it took 1.3 of the time. Bits
// that were asked for meanwhile must wait in the second level beside weights, tables and x: those of 8 rows of 4096
// columns are 256 KB a unit.
inline TurnSize TurnSizeOf(const LinearPlan& plan, const LinearSet& set) {
  const bool asks = set.rows.size() > kMaxUnaskedRows;
  const size_t bytes = asks ? size_t{128} << 10 : size_t{2} << 20;
  const size_t n_columns = asks && !set.items.empty() ? std::min(plan.d_in, 8 * kSignBlockColumns) : plan.d_in;
  const size_t unit_bytes = kUnitRows * plan.d_in * sizeof(uint16_t);
  return {.n_units = std::clamp<size_t>(bytes / unit_bytes, 1, kMaxTurnUnits), .n_columns = n_columns};
}

// Units [first_unit, end_unit) and columns [first, end).
struct Turn {
  size_t first_unit = 0, end_unit = 0;
  size_t first = 0, end = 0;
};

inline const uint8_t* BitsAt(const LinearPlan& plan, const SignItem& item, size_t tile, size_t column) {
  const size_t n_octets = (plan.d_in + kOctet - 1) / kOctet;
  return item.plane->bits.data() + (tile * n_octets + column / kOctet) * kTileRows;
}

inline constexpr size_t kMaxPieces = 16;

// The bits of a block of columns of one tile; their number.
inline size_t PiecesAt(const LinearPlan& plan, const LinearSet& set, size_t tile, size_t column,
                       const uint8_t* (&pieces)[kMaxPieces]) {
  size_t n = 0;
  for (const SignItem& item : set.items.first(std::min(kMaxPieces, set.items.size()))) {
    if (tile < item.n_tiles) pieces[n++] = BitsAt(plan, item, tile, column);
  }
  return n;
}

// What the groups of rows ask for while they work on one block: a share each.
struct AskedFor {
  const uint8_t* ahead = nullptr;
  size_t ahead_bytes = 0;
  const uint8_t* pieces[kMaxPieces] = {};
  size_t n_pieces = 0;

  void ShareOf(size_t index, size_t n_groups, BlockArgs& args) const {
    const size_t piece = n_pieces * index / n_groups;
    args.ahead = ahead + ahead_bytes / n_groups * index;
    args.ahead_bytes = ahead_bytes / n_groups;
    args.pieces = pieces + piece;
    args.n_pieces = n_pieces * (index + 1) / n_groups - piece;
  }
};

// A turn's columns of one tile times all rows.
inline void MultiplyTile(const LinearPlan& plan, const LinearSet& set, const Turn& turn, size_t tile, float* sums) {
  const bool asks = set.rows.size() > kMaxUnaskedRows;
  const TileProducts products = TileProductsOf(set.weight->dtype);
  const BlockProductFn* product = asks ? products.turns : products.reuse;
  const size_t pair_bytes = 2 * kTileRows * DTypeBytes(set.weight->dtype);
  const uint8_t* weights = set.weight->tiles.data() + tile * set.weight->tile_bytes();
  AskedFor asked;
  for (size_t k = turn.first; k < turn.end; k += kBlockColumns) {
    BlockArgs args = {.weights = weights + k / 2 * pair_bytes,
                      .n_pairs = (std::min(kBlockColumns, turn.end - k) + 1) / 2,
                      .stride = kUnitRows};
    if (asks) {
      asked.ahead = args.weights + kAheadBytes;
      asked.ahead_bytes = args.n_pairs * pair_bytes;
      asked.n_pieces = PiecesAt(plan, set, tile, k, asked.pieces);
    }
    for (size_t i = 0; i < set.groups.size(); ++i) {
      const RowGroup& group = set.groups[i];
      args.x = group.x + k * group.size;
      args.sums = sums + group.position * kUnitRows;
      if (asks) asked.ShareOf(i, set.groups.size(), args);
      product[group.size - 1](args);
    }
  }
}

// One item's signs on one unit; `next` are the bits wanted after these.
template <class Signs>
inline void AddUnitSigns(const LinearPlan& plan, const SignItem& item, const Turn& turn, size_t first_tile,
                         const uint8_t* next, float* sums) {
  typename Signs::State state;
  for (size_t k = turn.first; k < turn.end; k += kSignBlockColumns) {
    const size_t n = std::min(kSignBlockColumns, turn.end - k);
    SignArgs args;
    args.bits = BitsAt(plan, item, first_tile, k);
    args.next_tile = first_tile + 1 < item.n_tiles ? (plan.d_in + kOctet - 1) / kOctet * kTileRows : 0;
    args.n_octets = (n + kOctet - 1) / kOctet;
    args.block = item.tables + k / kSignBlockColumns * kSignTableBytes<Signs>;
    args.tables = args.block + Signs::kBlockBytes;
    args.ahead = k + n < turn.end ? args.bits + kSignBlockOctets * kTileRows : next;
    Signs::template Add<BitsLevel::kSecond>(args, state);
    Signs::Finish(args, state, sums);
  }
}

template <class Signs>
inline void DecodeTurn(const LinearPlan& plan, const LinearSet& set, const Turn& turn, const UnitSums* sums) {
  const size_t end_tile = std::min(turn.end_unit * kUnitTiles, set.weight->n_tiles());
  for (size_t tile = turn.first_unit * kUnitTiles; tile < end_tile; ++tile) {
    float* base = sums[tile / kUnitTiles - turn.first_unit].base + tile % kUnitTiles * kTileRows;
    MultiplyTile(plan, set, turn, tile, base);
  }
  for (size_t i = 0; i < set.items.size(); ++i) {
    const SignItem& item = set.items[i];
    const SignItem& next_item = set.items[std::min(i + 1, set.items.size() - 1)];
    for (size_t unit = turn.first_unit; unit < turn.end_unit && unit * kUnitTiles < item.n_tiles; ++unit) {
      const bool is_last = unit + 1 == turn.end_unit;
      const size_t next_tile = (is_last ? turn.first_unit : unit + 1) * kUnitTiles;
      const uint8_t* next = BitsAt(plan, is_last ? next_item : item, next_tile, turn.first);
      float* signs = sums[unit - turn.first_unit].signs + i * kUnitRows;
      AddUnitSigns<Signs>(plan, item, turn, unit * kUnitTiles, next, signs);
    }
  }
}

// Units [begin, end), no more than a turn's. The sums, one of each unit, are zero on entry.
template <class Signs>
inline void DecodeInTurns(const LinearPlan& plan, const LinearSet& set, size_t begin, size_t end,
                          const UnitSums* sums) {
  const size_t n_columns = TurnSizeOf(plan, set).n_columns;
  for (size_t k = 0; k < plan.d_in; k += n_columns) {
    DecodeTurn<Signs>(plan, set, {begin, end, k, std::min(k + n_columns, plan.d_in)}, sums);
  }
}

}  // namespace df::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DELTAFOLD_KERNELS_CPU_DECODE_TURNS_INL_H_
