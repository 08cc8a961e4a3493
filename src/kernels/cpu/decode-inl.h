// Decode: the rows of every set times its weights, two tiles of outputs (a unit) at a time, from P32, each row's signs
// woven in.
//
//   for 512 columns (a sign block)
//     for 32 columns (a base block; 128 on 16 lanes)
//       both tiles:      weights of the block x every group of rows
//       an equal share of the sign block's items, octet after octet
//
// Weaving is for memory, which has to be asked for weights as evenly as it can deliver them: while base and signs
// compute on what is in cache, each of them fetches a share of both tiles' next blocks, a line every few cycles.
// Whoever fetched in bursts, or left out the time of the signs, would find memory idle.
#if defined(DELTAFOLD_KERNELS_CPU_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAFOLD_KERNELS_CPU_DECODE_INL_H_
#undef DELTAFOLD_KERNELS_CPU_DECODE_INL_H_
#else
#define DELTAFOLD_KERNELS_CPU_DECODE_INL_H_
#endif

#include <algorithm>

#include "kernels/cpu/block_product-inl.h"
#include "kernels/cpu/decode_turns-inl.h"
#include "kernels/cpu/epilogue-inl.h"
#include "kernels/cpu/linear_plan.h"
#include "kernels/cpu/packed.h"
#include "kernels/cpu/sign_tables-inl.h"

HWY_BEFORE_NAMESPACE();
namespace df::kernels::cpu::HWY_NAMESPACE {

static_assert(kSignBlockColumns % kBlockColumns == 0);

// Where one block of columns of one tile lies, and the block to be fetched meanwhile.
struct WeightBlock {
  const uint8_t* weights = nullptr;
  size_t n_pairs = 0;
  size_t bytes = 0;
  const uint8_t* ahead = nullptr;  // `bytes` of them
};

inline WeightBlock BlockAt(const PackedWeight& weight, size_t tile, size_t pair) {
  const size_t pair_bytes = 2 * kTileRows * DTypeBytes(weight.dtype);
  const size_t n_pairs = (weight.d_in + 1) / 2;
  const uint8_t* tile_begin = weight.tiles.data() + tile * weight.tile_bytes();
  WeightBlock block;
  block.weights = tile_begin + pair * pair_bytes;
  block.n_pairs = std::min(kBlockColumns / 2, n_pairs - pair);
  block.bytes = block.n_pairs * pair_bytes;
  // The same tile's next block, or the first one of the tile that takes its place in the next unit.
  const bool is_last = pair + block.n_pairs == n_pairs;
  const size_t next_tile = tile + kUnitTiles < weight.n_tiles() ? kUnitTiles * weight.tile_bytes() : 0;
  block.ahead = is_last ? tile_begin + next_tile : block.weights + block.bytes;
  return block;
}

inline constexpr size_t kStagedBytes = kBlockColumns * kTileRows * sizeof(float);

// The same block of a mapped weight, made here. Making it has fetched the rows' next lines: nothing else is asked for.
inline WeightBlock StagedBlockAt(const PackedWeight& weight, size_t tile, size_t column, uint8_t* staged) {
  const size_t n_columns = std::min(kBlockColumns, weight.d_in - column);
  StageBlock(weight, {.tile = tile, .first = column, .n_cols = n_columns, .next_tile = tile + kUnitTiles}, staged);
  return {.weights = staged, .n_pairs = (n_columns + 1) / 2, .bytes = 0, .ahead = staged};
}

// One block times all rows of the set; fetches the first `ahead_bytes` of what is ahead.
inline void MultiplyBlock(const LinearSet& set, const WeightBlock& block, size_t first_column, size_t ahead_bytes,
                          float* sums) {
  const BlockProductFn* products = TileProductsOf(set.weight->dtype).stream;
  const size_t share = ahead_bytes / set.groups.size();
  const uint8_t* ahead = block.ahead;
  for (const RowGroup& group : set.groups) {
    products[group.size - 1]({.weights = block.weights,
                              .n_pairs = block.n_pairs,
                              .x = group.x + first_column * group.size,
                              .sums = sums + group.position * kUnitRows,
                              .stride = kUnitRows,
                              .ahead = ahead,
                              .ahead_bytes = share});
    ahead += share;
  }
}

// The items of a set on one unit and one sign block, taken in small shares.
template <class Signs>
class SignBlock {
 public:
  SignBlock(const LinearPlan& plan, const LinearSet& set, size_t first_tile, typename Signs::State& state)
      : set_(set), first_tile_(first_tile), n_octets_((plan.d_in + kOctet - 1) / kOctet), state_(state) {}

  void Start(size_t first_octet) {
    first_octet_ = first_octet;
    size_ = std::min(kSignBlockOctets, n_octets_ - first_octet);
    done_ = 0;
  }

  // Octets still to do until `part` of `n_parts` of the block's are done, all items counted.
  size_t LeftUntil(size_t part, size_t n_parts) const { return set_.items.size() * size_ * part / n_parts - done_; }

  // Does the next n octets; fetches n lines of weights meanwhile.
  void Advance(size_t n_all, const uint8_t* weights_ahead, float* sums) {
    const size_t end = done_ + n_all;
    while (done_ < end) {
      const size_t item = done_ / size_;
      const size_t octet = done_ % size_;
      const size_t n = std::min(size_ - octet, end - done_);
      done_ += n;
      if (first_tile_ < set_.items[item].n_tiles) AddOctets(item, octet, n, weights_ahead, sums + item * kUnitRows);
      weights_ahead += n * 64;
    }
  }

 private:
  const uint8_t* Bits(const SignItem& item, size_t octet) const {
    return item.plane->bits.data() + (first_tile_ * n_octets_ + first_octet_ + octet) * kTileRows;
  }

  void AddOctets(size_t index, size_t octet, size_t n, const uint8_t* weights_ahead, float* sums) {
    const SignItem& item = set_.items[index];
    const uint8_t* block = item.tables + first_octet_ / kSignBlockOctets * kSignTableBytes<Signs>;
    // What is wanted after these: the rest of the item, the next item, or the first item's next block.
    const bool is_last = octet + n == size_;
    const SignItem& next = !is_last ? item : set_.items[index + 1 < set_.items.size() ? index + 1 : 0];
    const size_t next_octet = !is_last ? octet + n : index + 1 < set_.items.size() ? 0 : size_;
    SignArgs args = {.bits = Bits(item, octet),
                     .next_tile = first_tile_ + 1 < item.n_tiles ? n_octets_ * kTileRows : 0,
                     .n_octets = n,
                     .tables = block + Signs::kBlockBytes + octet * Signs::kOctetBytes,
                     .block = block,
                     .ahead = Bits(next, next_octet),
                     .weights_ahead = weights_ahead};
    Signs::template Add<BitsLevel::kFirst>(args, state_);
    if (!is_last) return;
    args.bits = Bits(item, 0);
    args.n_octets = size_;
    Signs::Finish(args, state_, sums);
  }

  const LinearSet& set_;
  size_t first_tile_;
  size_t n_octets_;
  typename Signs::State& state_;
  size_t first_octet_ = 0;
  size_t size_ = 0;  // octets of the block
  size_t done_ = 0;  // octets of all items, item after item
};

// base += row scale * signs.
inline void AddSigns(const SignItem& item, size_t first_tile, const float* signs, float* sums) {
  const FloatTag d;
  if (first_tile >= item.n_tiles) return;
  const float* scale = item.plane->row_scale.data() + first_tile * kTileRows;
  const size_t n = std::min(kUnitTiles, item.n_tiles - first_tile) * kTileRows;
  for (size_t i = 0; i < n; i += kLanes) {
    const FloatVec scaled = hn::Mul(hn::LoadU(d, scale + i), hn::LoadU(d, signs + i));
    hn::StoreU(hn::Add(hn::LoadU(d, sums + i), scaled), d, sums + i);
  }
}

// Columns [first, first + n) of one sign block.
template <class Signs>
inline void DecodeSignBlock(const LinearSet& set, size_t first_tile, size_t first, size_t n, SignBlock<Signs>& signs,
                            const UnitSums& sums) {
  const size_t last_tile = std::min(first_tile + kUnitTiles, set.weight->n_tiles());
  const size_t n_blocks = (n + kBlockColumns - 1) / kBlockColumns;
  signs.Start(first / kOctet);
  for (size_t i = 0; i < n_blocks; ++i) {
    const size_t column = first + i * kBlockColumns;
    const size_t n_octets = signs.LeftUntil(i + 1, n_blocks);
    // Where signs fetch weights, they take the end of the last tile's block.
    // Where only signs are left: a line that does no harm.
    const auto* signs_ahead = reinterpret_cast<const uint8_t*>(sums.base);
    for (size_t tile = first_tile; tile < last_tile; ++tile) {
      const WeightBlock block = set.weight->IsMapped() ? StagedBlockAt(*set.weight, tile, column, sums.staged)
                                                       : BlockAt(*set.weight, tile, column / 2);
      const size_t left = kSignsFetchWeights && tile + 1 == last_tile ? std::min(block.bytes, n_octets * 64) : 0;
      MultiplyBlock(set, block, column, block.bytes - left, sums.base + (tile - first_tile) * kTileRows);
      signs_ahead = block.ahead + block.bytes - left;
    }
    signs.Advance(n_octets, signs_ahead, sums.signs);
  }
}

template <class Signs>
inline void DecodeWoven(const LinearPlan& plan, const LinearSet& set, size_t first_tile, const UnitSums& sums) {
  typename Signs::State state;
  SignBlock<Signs> signs(plan, set, first_tile, state);
  for (size_t k = 0; k < plan.d_in; k += kSignBlockColumns) {
    DecodeSignBlock(set, first_tile, k, std::min(kSignBlockColumns, plan.d_in - k), signs, sums);
  }
}

inline void FinishUnit(const LinearPlan& plan, const LinearSet& set, size_t first_tile, const UnitSums& sums) {
  for (size_t i = 0; i < set.items.size(); ++i) {
    AddSigns(set.items[i], first_tile, sums.signs + i * kUnitRows, sums.base + set.items[i].position * kUnitRows);
  }
  for (const LinearRun& run : set.runs) {
    Finish(plan, run,
           {.first = first_tile * kTileRows,
            .n = kUnitRows,
            .sums = sums.base + run.position * kUnitRows,
            .stride = kUnitRows,
            .tile_stride = kTileRows});
  }
}

// What is fetched for an epilogue must wait in the second level beside tables and weights.
inline constexpr size_t kMaxFetchedBytes = size_t{64} << 10;

// The low-rank factors that the epilogue of units [begin, end) will read, a few lines of each adapter: on their way
// into the second level while the base is multiplied. On a Zen 4 8 rows of 8 adapters of rank 16 take 1.08 of the
// base's time, without 1.12 (4096 x 4096).
inline void FetchLowRank(const LinearSet& set, size_t begin, size_t end) {
  size_t left_bytes = kMaxFetchedBytes;
  for (const LinearRun& run : set.runs) {
    if (run.delta() == nullptr) continue;
    for (const PackedLowRank& pair : run.delta()->low_rank) {
      const size_t unit_bytes = kUnitTiles * pair.b.tile_bytes();
      const size_t first = begin * unit_bytes;
      const size_t last = std::min(first + std::min(left_bytes, (end - begin) * unit_bytes), pair.b.bytes());
      for (size_t byte = first; byte < last; byte += 64) __builtin_prefetch(pair.b.tiles.data() + byte, 0, 2);
      left_bytes -= std::max(first, last) - first;
    }
  }
}

// Units of a set that are done together, and the floats of one's sums.
inline size_t UnitsAtOnce(const LinearPlan& plan, const LinearSet& set) {
  return TakesTurns(set) ? TurnSizeOf(plan, set).n_units : 1;
}
inline size_t UnitFloats(const LinearSet& set) { return (set.rows.size() + set.items.size()) * kUnitRows; }

// Memory of a thread: the staged block, then the sums.
inline constexpr size_t kStagedFloats = kStagedBytes / sizeof(float);
inline size_t DecodeFloats(const LinearPlan& plan, const LinearSet& set) {
  return kStagedFloats + UnitsAtOnce(plan, set) * UnitFloats(set);
}

// Units [begin, end), at most UnitsAtOnce.
template <class Signs>
inline void DecodeUnits(const LinearPlan& plan, const LinearSet& set, size_t begin, size_t end, float* memory) {
  UnitSums sums[kMaxTurnUnits];
  const size_t floats = UnitFloats(set);
  float* first = memory + kStagedFloats;
  std::fill_n(first, (end - begin) * floats, 0.0F);
  for (size_t i = 0; i < end - begin; ++i) {
    sums[i] = {.base = first + i * floats,
               .signs = first + i * floats + set.rows.size() * kUnitRows,
               .staged = reinterpret_cast<uint8_t*>(memory)};
  }
  FetchLowRank(set, begin, end);
  if (TakesTurns(set)) {
    DecodeInTurns<Signs>(plan, set, begin, end, sums);
  } else {
    DecodeWoven<Signs>(plan, set, begin * kUnitTiles, sums[0]);
  }
  for (size_t i = 0; i < end - begin; ++i) FinishUnit(plan, set, (begin + i) * kUnitTiles, sums[i]);
}

// Those of units [begin, end) that the set has; memory: DecodeFloats.
template <class Signs>
inline void DecodeSet(const LinearPlan& plan, const LinearSet& set, size_t begin, size_t end, float* memory) {
  const size_t set_end = std::min(end, (set.d_out + kUnitRows - 1) / kUnitRows);
  const size_t step = UnitsAtOnce(plan, set);
  for (size_t unit = begin; unit < set_end; unit += step) {
    DecodeUnits<Signs>(plan, set, unit, std::min(unit + step, set_end), memory);
  }
}

}  // namespace df::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DELTAFOLD_KERNELS_CPU_DECODE_INL_H_
