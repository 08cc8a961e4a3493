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

#include <array>
#include <utility>

#include "kernels/cpu/simd-inl.h"
#include "kernels/packed.h"

HWY_BEFORE_NAMESPACE();
namespace df::kernels::cpu::HWY_NAMESPACE {

// One f32 chain over 4096 terms already misses 1e-6: sums start anew every block. 512 columns of 32 bf16 rows are 32
// KB.
inline constexpr size_t kBlockColumns = 512;

// Rows of the largest group: 14 x 2 accumulators leave 4 of 32 registers for weights and x; 6 x 2 leave 4 of 16;
// without FMA a product needs a register too.
inline constexpr size_t kMaxGroup = kLanes >= 16 ? 14 : kLanes >= 8 ? 6 : 4;

// How pairs of columns lie in a tile, and how one vector of outputs of each is read as f32.
struct Bf16Tile {
  static constexpr size_t kPairBytes = 2 * kTileRows * 2;
  static constexpr size_t kRowBytes = 4;  // from an output to the next
  static HWY_INLINE void Load(const uint8_t* pair, FloatVec& even, FloatVec& odd) {
    const UintTag du;
    const UintVec both = hn::LoadU(du, reinterpret_cast<const uint32_t*>(pair));
    even = hn::BitCast(FloatTag(), hn::ShiftLeft<16>(both));
    odd = hn::BitCast(FloatTag(), hn::And(both, hn::Set(du, 0xFFFF0000u)));
  }
};
struct F16Tile {
  static constexpr size_t kPairBytes = 2 * kTileRows * 2;
  static constexpr size_t kRowBytes = 2;
  static HWY_INLINE void Load(const uint8_t* pair, FloatVec& even, FloatVec& odd) {
    const hn::Rebind<hwy::float16_t, FloatTag> dh;
    const auto* from = reinterpret_cast<const hwy::float16_t*>(pair);
    even = hn::PromoteTo(FloatTag(), hn::LoadU(dh, from));
    odd = hn::PromoteTo(FloatTag(), hn::LoadU(dh, from + kTileRows));
  }
};
struct F32Tile {
  static constexpr size_t kPairBytes = 2 * kTileRows * 4;
  static constexpr size_t kRowBytes = 4;
  static HWY_INLINE void Load(const uint8_t* pair, FloatVec& even, FloatVec& odd) {
    const auto* from = reinterpret_cast<const float*>(pair);
    even = hn::LoadU(FloatTag(), from);
    odd = hn::LoadU(FloatTag(), from + kTileRows);
  }
};

// Vectors of outputs taken at once: more of them read the tile in longer pieces, as far as registers reach.
constexpr size_t VectorsFor(size_t group) { return kLanes >= 16 ? 2 : group <= 2 ? 4 : 2; }

// What a group reads ahead of its own use, in bytes from the current pair; 0 = nothing. Measured on a 2-core AVX-512
// server: +14..30 % on streamed weights; on AVX2 desktops plain streams were best.
inline constexpr size_t kPrefetchFarBytes = kLanes >= 16 ? 8192 : 0;  // into the second level
inline constexpr size_t kPrefetchNearBytes = kLanes >= 16 ? 512 : 0;  // into the first

template <size_t kBytes>
HWY_INLINE void PrefetchPair(const uint8_t* pair) {
  if constexpr (kPrefetchFarBytes != 0) {
    DF_UNROLL
    for (size_t line = 0; line < kBytes; line += 64) {
      __builtin_prefetch(pair + kPrefetchFarBytes + line, 0, 2);
      __builtin_prefetch(pair + kPrefetchNearBytes + line, 0, 3);
    }
  }
}

struct BlockArgs {
  const uint8_t* weights = nullptr;  // first pair of the block
  size_t n_pairs = 0;
  const float* x = nullptr;  // [2 * n_pairs][G]
  float* sums = nullptr;     // [G][stride]
  size_t stride = 0;
};

// V vectors of outputs from output `first` on.
template <class Tile, size_t G, size_t V, bool kStream>
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
  for (size_t pair = 0; pair < args.n_pairs; ++pair, w += Tile::kPairBytes, x += 2 * G) {
    if constexpr (kStream) PrefetchPair<Tile::kPairBytes>(w);
    FloatVec even[V], odd[V];
    DF_UNROLL
    for (size_t v = 0; v < V; ++v) Tile::Load(w + v * kLanes * Tile::kRowBytes, even[v], odd[v]);
    DF_UNROLL
    for (size_t g = 0; g < G; ++g) {
      const FloatVec xg = hn::Set(d, x[g]);
      DF_UNROLL
      for (size_t v = 0; v < V; ++v) acc[g][v] = hn::MulAdd(even[v], xg, acc[g][v]);
    }
    DF_UNROLL
    for (size_t g = 0; g < G; ++g) {
      const FloatVec xg = hn::Set(d, x[G + g]);
      DF_UNROLL
      for (size_t v = 0; v < V; ++v) acc[g][v] = hn::MulAdd(odd[v], xg, acc[g][v]);
    }
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

template <class Tile, size_t G, bool kStream>
HWY_NOINLINE void BlockProduct(const BlockArgs& args) {
  constexpr size_t kVectors = VectorsFor(G);
  for (size_t first = 0; first < kTileRows; first += kVectors * kLanes) {
    PartProduct<Tile, G, kVectors, kStream>(args, first);
  }
}

// By group size - 1. kStream: weights come from memory (the first group of a block), so read ahead.
using BlockProductFn = void (*)(const BlockArgs&);
using BlockProductTable = std::array<BlockProductFn, kMaxGroup>;

template <class Tile, bool kStream, size_t... kSizes>
constexpr BlockProductTable MakeTable(std::index_sequence<kSizes...>) {
  return {&BlockProduct<Tile, kSizes + 1, kStream>...};
}
template <class Tile, bool kStream>
inline constexpr BlockProductTable kBlockProducts = MakeTable<Tile, kStream>(std::make_index_sequence<kMaxGroup>());

struct BlockProducts {
  const BlockProductTable* stream = nullptr;
  const BlockProductTable* reuse = nullptr;
};

inline BlockProducts BlockProductsOf(DType dtype) {
  switch (dtype) {
    case DType::kBf16: return {&kBlockProducts<Bf16Tile, true>, &kBlockProducts<Bf16Tile, false>};
    case DType::kF16: return {&kBlockProducts<F16Tile, true>, &kBlockProducts<F16Tile, false>};
    default: return {&kBlockProducts<F32Tile, true>, &kBlockProducts<F32Tile, false>};
  }
}

}  // namespace df::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DELTAFOLD_KERNELS_CPU_BLOCK_PRODUCT_INL_H_
