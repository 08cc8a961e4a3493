// Decode: the rows of every set times its weights, two tiles of outputs (a unit) at a time, from P32, each row's signs
// woven in.
//
//   for 512 columns (a sign block)
//     for 64 columns (a base block; 128 on 16 lanes)
//       both tiles:      weights of the block x every group of rows; fetches the tile's next block meanwhile
//       an equal share of the sign block's items, octet after octet; fetches the bits wanted next
//
// Weaving is for memory: it is asked for weights as evenly as it can deliver them, though signs take time in which no
// weights are used. A share of signs is shorter (some 100 cycles a variant) than what is then still under way. Two
// tiles take turns for the same reason: two streams, and each is a whole block ahead.
#if defined(DELTAFOLD_KERNELS_CPU_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAFOLD_KERNELS_CPU_DECODE_INL_H_
#undef DELTAFOLD_KERNELS_CPU_DECODE_INL_H_
#else
#define DELTAFOLD_KERNELS_CPU_DECODE_INL_H_
#endif

#include <algorithm>

#include "kernels/cpu/block_product-inl.h"
#include "kernels/cpu/epilogue-inl.h"
#include "kernels/cpu/linear_plan.h"
#include "kernels/cpu/sign_tables-inl.h"

HWY_BEFORE_NAMESPACE();
namespace df::kernels::cpu::HWY_NAMESPACE {

static_assert(kSignBlockColumns % kBlockColumns == 0);

// Sums of one unit while it is worked on.
struct UnitSums {
  float* base = nullptr;   // [rows of the set][kUnitRows]
  float* signs = nullptr;  // [items of the set][kUnitRows], not yet scaled
};

// One block of columns of one tile, all rows of the set.
inline void MultiplyBlock(const LinearSet& set, size_t tile, size_t pair, float* sums) {
  const PackedWeight& weight = *set.weight;
  const size_t pair_bytes = 2 * kTileRows * DTypeBytes(weight.dtype);
  const size_t n_pairs = (weight.d_in + 1) / 2;
  const size_t n = std::min(kBlockColumns / 2, n_pairs - pair);
  const uint8_t* block = weight.tiles.data() + tile * weight.tile_bytes() + pair * pair_bytes;
  // The same tile's next block, or the first one of the tile that takes its place in the next unit.
  const uint8_t* ahead = pair + n < n_pairs ? block + n * pair_bytes : block - pair * pair_bytes;
  if (pair + n == n_pairs && tile + kUnitTiles < weight.n_tiles()) ahead += kUnitTiles * weight.tile_bytes();
  const size_t share = n * pair_bytes / set.groups.size();
  const BlockProductFn* products = TileProductsOf(weight.dtype).stream;
  for (const RowGroup& group : set.groups) {
    products[group.size - 1]({.weights = block,
                              .n_pairs = n,
                              .x = group.x + 2 * pair * group.size,
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

  // Goes on until `part` of `n_parts` of the block's octets of all items are done.
  void Reach(size_t part, size_t n_parts, float* sums) {
    const size_t end = set_.items.size() * size_ * part / n_parts;
    while (done_ < end) {
      const size_t item = done_ / size_;
      const size_t octet = done_ % size_;
      const size_t n = std::min(size_ - octet, end - done_);
      done_ += n;
      if (first_tile_ < set_.items[item].n_tiles) AddOctets(item, octet, n, sums + item * kUnitRows);
    }
  }

 private:
  const uint8_t* Bits(const SignItem& item, size_t octet) const {
    return item.plane->bits.data() + (first_tile_ * n_octets_ + first_octet_ + octet) * kTileRows;
  }

  void AddOctets(size_t index, size_t octet, size_t n, float* sums) {
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
                     .ahead = Bits(next, next_octet)};
    Signs::Add(args, state_);
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

template <class Signs>
inline void DecodeUnit(const LinearPlan& plan, const LinearSet& set, size_t unit, const UnitSums& sums) {
  const size_t first_tile = unit * kUnitTiles;
  if (first_tile * kTileRows >= set.d_out) return;
  std::fill_n(sums.base, set.rows.size() * kUnitRows, 0.0F);
  std::fill_n(sums.signs, set.items.size() * kUnitRows, 0.0F);
  const size_t last_tile = std::min(first_tile + kUnitTiles, set.weight->n_tiles());
  typename Signs::State state;
  SignBlock<Signs> signs(plan, set, first_tile, state);
  for (size_t k = 0; k < plan.d_in; k += kSignBlockColumns) {
    const size_t n_columns = std::min(kSignBlockColumns, plan.d_in - k);
    const size_t n_blocks = (n_columns + kBlockColumns - 1) / kBlockColumns;
    signs.Start(k / kOctet);
    for (size_t block = 0; block < n_blocks; ++block) {
      for (size_t tile = first_tile; tile < last_tile; ++tile) {
        MultiplyBlock(set, tile, (k + block * kBlockColumns) / 2, sums.base + (tile - first_tile) * kTileRows);
      }
      signs.Reach(block + 1, n_blocks, sums.signs);
    }
  }
  for (size_t i = 0; i < set.items.size(); ++i) {
    AddSigns(set.items[i], first_tile, sums.signs + i * kUnitRows, sums.base + set.items[i].position * kUnitRows);
  }
  for (const LinearRun& run : set.runs) {
    Finish(plan, run,
           {.first = first_tile * kTileRows,
            .n = kUnitRows,
            .sums = sums.base + run.position * kUnitRows,
            .stride = kUnitRows});
  }
}

}  // namespace df::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DELTAFOLD_KERNELS_CPU_DECODE_INL_H_
