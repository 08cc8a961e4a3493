// The register kernel of every matrix product here: a block of columns of a P32 tile (or of an f32 panel in the same
// layout) times a group of rows, weights read once for the group.
//
//   sums[g][r] += sum_k x[k][g] * w[k][r]      32 outputs r, one chain of fused multiply-adds over ascending k each
//
// The chain of an output is the same in every instance below, whatever the group's size: that is what makes a row's
// bits independent of its batch. Per pair of columns: 32 x 2 weights read, 64 * G multiply-adds.
#if defined(DELTAFOLD_KERNELS_CPU_BLOCK_PRODUCT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAFOLD_KERNELS_CPU_BLOCK_PRODUCT_INL_H_
#undef DELTAFOLD_KERNELS_CPU_BLOCK_PRODUCT_INL_H_
#else
#define DELTAFOLD_KERNELS_CPU_BLOCK_PRODUCT_INL_H_
#endif

#include <algorithm>
#include <array>
#include <utility>

#include "kernels/cpu/simd-inl.h"
#include "kernels/packed.h"

HWY_BEFORE_NAMESPACE();
namespace df::kernels::cpu::HWY_NAMESPACE {

// Columns of one call: how long a chain is (one f32 chain over 4096 terms already misses 1e-6) and how far the reading
// of weights runs ahead. A block of bf16 weights is 2 KB (8 KB on 16 lanes): it stays in the first level while every
// group of rows takes its turn, and the next block of the same tile arrives meanwhile. On a Zen 3 64 columns take 14 %
// longer with 4 rows of 4 variants; on 16 lanes fetching 8 KB ahead was best.
inline constexpr size_t kBlockColumns = kLanes >= 16 ? 128 : 32;

// Rows of the largest group. On an f32 panel 14 x 2 accumulators leave 4 of 32 registers for weights and x, 6 x 2 leave
// 4 of 16; without FMA a product needs a register too. Unpacking 16-bit weights takes a few more.
inline constexpr size_t kPanelGroup = kLanes >= 16 ? 14 : kLanes >= 8 ? 6 : 4;
inline constexpr size_t kTileGroup = kLanes >= 16 ? 12 : kLanes >= 8 ? 5 : 3;

// How pairs of columns lie in a tile, and how one vector of outputs of either column is read as f32. Two reads of a
// pair cost less than a register held over the whole group.
struct Bf16Tile {
  static constexpr size_t kPairBytes = 2 * kTileRows * 2;
  static constexpr size_t kRowBytes = 4;  // from an output to the next
  static HWY_INLINE UintVec Both(const uint8_t* pair) {
    return hn::LoadU(UintTag(), reinterpret_cast<const uint32_t*>(pair));
  }
  static HWY_INLINE FloatVec Even(const uint8_t* pair) {
    return hn::BitCast(FloatTag(), hn::ShiftLeft<16>(Both(pair)));
  }
  static HWY_INLINE FloatVec Odd(const uint8_t* pair) {
    return hn::BitCast(FloatTag(), hn::And(Both(pair), hn::Set(UintTag(), 0xFFFF0000u)));
  }
};
struct F16Tile {
  static constexpr size_t kPairBytes = 2 * kTileRows * 2;
  static constexpr size_t kRowBytes = 2;
  static HWY_INLINE FloatVec Even(const uint8_t* pair) {
    const hn::Rebind<hwy::float16_t, FloatTag> dh;
    return hn::PromoteTo(FloatTag(), hn::LoadU(dh, reinterpret_cast<const hwy::float16_t*>(pair)));
  }
  static HWY_INLINE FloatVec Odd(const uint8_t* pair) { return Even(pair + kPairBytes / 2); }
};
struct F32Tile {
  static constexpr size_t kPairBytes = 2 * kTileRows * 4;
  static constexpr size_t kRowBytes = 4;
  static HWY_INLINE FloatVec Even(const uint8_t* pair) {
    return hn::LoadU(FloatTag(), reinterpret_cast<const float*>(pair));
  }
  static HWY_INLINE FloatVec Odd(const uint8_t* pair) { return Even(pair + kPairBytes / 2); }
};

// Vectors of outputs taken at once: more of them read the tile in longer pieces, as far as registers reach.
constexpr size_t VectorsFor(size_t group) { return kLanes >= 16 ? 2 : group <= 2 ? 4 : 2; }

// Into the first level, bytes ahead of the current pair; 0 = nothing. `BlockArgs::ahead` brings weights from memory: on
// AVX-512 servers into the second level, from where they still have to be fetched.
inline constexpr size_t kPrefetchNearBytes = kLanes >= 16 ? 512 : 0;
inline constexpr int kPrefetchAheadLevel = kLanes >= 16 ? 2 : 3;  // as __builtin_prefetch counts: 3 = first level

template <size_t kLines, int kLevel>
HWY_INLINE void PrefetchAhead(const uint8_t* ahead) {
  DF_UNROLL
  for (size_t line = 0; line < kLines; ++line) __builtin_prefetch(ahead + line * 64, 0, kLevel);
}

template <size_t kBytes>
HWY_INLINE void PrefetchNear(const uint8_t* pair) {
  if constexpr (kPrefetchNearBytes != 0) {
    DF_UNROLL
    for (size_t line = 0; line < kBytes; line += 64) __builtin_prefetch(pair + kPrefetchNearBytes + line, 0, 3);
  }
}

// What a product asks for while it runs, if its weights come from memory: nothing, as its core does it; what is ahead
// and, where that goes into the second level, what is near (decode-inl.h); what is ahead, into the second level, and
// pieces of something else (decode_turns-inl.h).
enum class Fetch : uint8_t { kNothing, kNear, kPieces };

inline constexpr size_t kPieceLines = kBlockColumns / 16;  // as many bytes as signs of a block's columns have

struct BlockArgs {
  const uint8_t* weights = nullptr;  // first pair of the block
  size_t n_pairs = 0;
  const float* x = nullptr;  // [2 * n_pairs][G]
  float* sums = nullptr;     // [G][stride]
  size_t stride = 0;
  // Weights to fetch from memory meanwhile, spread evenly over the call: a burst of requests fills the few buffers of
  // outstanding misses and then stops the loop. Only products that stream look at it.
  const uint8_t* ahead = nullptr;
  size_t ahead_bytes = 0;
  // More to fetch, kPieceLines lines a piece, one line a pair of columns as far as those reach.
  const uint8_t* const* pieces = nullptr;
  size_t n_pieces = 0;
};

HWY_INLINE void PrefetchPieces(const BlockArgs& args, size_t pair) {
  const size_t piece = pair / kPieceLines;
  if (piece < args.n_pieces) __builtin_prefetch(args.pieces[piece] + pair % kPieceLines * 64, 0, 2);
}

// acc[g][v] += w[v] * x[g]: one column.
template <size_t G, size_t V>
HWY_INLINE void AddColumn(const FloatVec (&w)[V], const float* x, FloatVec (&acc)[G][V]) {
  DF_UNROLL
  for (size_t g = 0; g < G; ++g) {
    const FloatVec xg = hn::Set(FloatTag(), x[g]);
    DF_UNROLL
    for (size_t v = 0; v < V; ++v) acc[g][v] = hn::MulAdd(w[v], xg, acc[g][v]);
  }
}

// V vectors of outputs from output `first` on.
template <class Tile, size_t G, size_t V, Fetch kFetch>
HWY_INLINE void PartProduct(const BlockArgs& args, size_t first) {
  const FloatTag d;
  FloatVec acc[G][V];
  DF_UNROLL
  for (size_t g = 0; g < G; ++g) {
    DF_UNROLL
    for (size_t v = 0; v < V; ++v) acc[g][v] = hn::Zero(d);
  }
  const uint8_t* HWY_RESTRICT w = args.weights + first * Tile::kRowBytes;
  const float* HWY_RESTRICT x = args.x;
  // This part's share of what to fetch.
  constexpr size_t kParts = kTileRows / (V * kLanes);
  const size_t step = (args.ahead_bytes + kParts * args.n_pairs - 1) / (kParts * args.n_pairs);
  const uint8_t* ahead = args.ahead + args.ahead_bytes * first / kTileRows;
  for (size_t pair = 0; pair < args.n_pairs; ++pair, w += Tile::kPairBytes, x += 2 * G) {
    if constexpr (kFetch != Fetch::kNothing) {
      constexpr size_t kLines = std::max<size_t>(1, Tile::kPairBytes / 64 / kParts);
      if constexpr (kFetch == Fetch::kNear) {
        PrefetchAhead<kLines, kPrefetchAheadLevel>(ahead);
        PrefetchNear<Tile::kPairBytes>(w);
      } else {
        PrefetchAhead<kLines, 2>(ahead);
        if (first == 0) PrefetchPieces(args, pair);
      }
      ahead += step;
    }
    FloatVec column[V];
    DF_UNROLL
    for (size_t v = 0; v < V; ++v) column[v] = Tile::Even(w + v * kLanes * Tile::kRowBytes);
    AddColumn<G, V>(column, x, acc);
    DF_UNROLL
    for (size_t v = 0; v < V; ++v) column[v] = Tile::Odd(w + v * kLanes * Tile::kRowBytes);
    AddColumn<G, V>(column, x + G, acc);
  }
  DF_UNROLL
  for (size_t g = 0; g < G; ++g) {
    DF_UNROLL
    for (size_t v = 0; v < V; ++v) {
      float* to = args.sums + g * args.stride + first + v * kLanes;
      hn::StoreU(hn::Add(hn::LoadU(d, to), acc[g][v]), d, to);
    }
  }
}

template <class Tile, size_t G, Fetch kFetch>
HWY_NOINLINE void BlockProduct(const BlockArgs& args) {
  constexpr size_t kVectors = VectorsFor(G);
  for (size_t first = 0; first < kTileRows; first += kVectors * kLanes) {
    PartProduct<Tile, G, kVectors, kFetch>(args, first);
  }
}

using BlockProductFn = void (*)(const BlockArgs&);

// By group size - 1.
template <class Tile, Fetch kFetch, size_t... kSizes>
constexpr auto MakeTable(std::index_sequence<kSizes...>) {
  return std::array<BlockProductFn, sizeof...(kSizes)>{&BlockProduct<Tile, kSizes + 1, kFetch>...};
}
template <class Tile, Fetch kFetch>
inline constexpr auto kTileProducts = MakeTable<Tile, kFetch>(std::make_index_sequence<kTileGroup>());
inline constexpr auto kPanelProducts = MakeTable<F32Tile, Fetch::kNothing>(std::make_index_sequence<kPanelGroup>());

// [kTileGroup] each.
struct TileProducts {
  const BlockProductFn* stream = nullptr;  // weights come from memory: decode-inl.h
  const BlockProductFn* turns = nullptr;   // the same, decode_turns-inl.h
  const BlockProductFn* reuse = nullptr;
};

template <class Tile>
inline TileProducts ProductsOf() {
  return {kTileProducts<Tile, Fetch::kNear>.data(), kTileProducts<Tile, Fetch::kPieces>.data(),
          kTileProducts<Tile, Fetch::kNothing>.data()};
}

inline TileProducts TileProductsOf(DType dtype) {
  switch (dtype) {
    case DType::kBf16: return ProductsOf<Bf16Tile>();
    case DType::kF16: return ProductsOf<F16Tile>();
    default: return ProductsOf<F32Tile>();
  }
}

}  // namespace df::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DELTAFOLD_KERNELS_CPU_BLOCK_PRODUCT_INL_H_
