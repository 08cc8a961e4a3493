// Inner loops of attention over one span of 64 tokens, straight from the pool: scores (a lane is a token) and the
// weighted sum of values (a lane is a dimension). Included once a vector target.
//
// Every row is computed alike whatever tile it is in: a score is one chain over the dimensions, an output element one
// chain over the tokens. Tiles of rows only decide how often a loaded vector is used.
//
// A word of the pool in bf16 is a pair: two dimensions of a key, or of a value. One load, a shift and a mask give two
// vectors of f32, which hides behind the memory's pace in decode. For many rows keys are widened once (StageKeys).
#if defined(DELTAFOLD_KERNELS_CPU_ATTENTION_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAFOLD_KERNELS_CPU_ATTENTION_TILE_INL_H_
#undef DELTAFOLD_KERNELS_CPU_ATTENTION_TILE_INL_H_
#else
#define DELTAFOLD_KERNELS_CPU_ATTENTION_TILE_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/float16.h"
#include "hwy/highway.h"
#include "kernels/cpu/attention_plan.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace df::kernels::cpu::HWY_NAMESPACE {
static_assert(kKvBlockTokens % kLanes == 0, "a block of tokens is whole vectors");

#if HWY_COMPILER_CLANG
#define DF_UNROLL_BY_TWO _Pragma("clang loop unroll_count(2)")
#else
#define DF_UNROLL_BY_TWO _Pragma("GCC unroll 2")
#endif

// Rows of a tile at most. 6 x 2 accumulators, two operands, a broadcast and a mask are 16 registers; with 32 registers
// 6 x 4 leave as many to spare. Per two dimensions 14 loads serve 24 multiply-adds.
inline constexpr size_t kTileRowsMax = 6;
// Rows from which keys are widened once for all tiles: five operations a vector then save four in each tile but one.
inline constexpr size_t kStagedRows = 2 * kTileRowsMax + 1;
inline constexpr bool kManyRegisters = HWY_TARGET == HWY_AVX3 || HWY_ARCH_ARM;

// Vectors of tokens that a tile of scores spans, and pairs of vectors of dimensions that a tile of outputs spans: at
// least 8 chains where registers allow (two units times a latency of 4).
constexpr size_t ScoreVectors(size_t n_rows) { return kManyRegisters || n_rows <= 2 ? 4 : 2; }
constexpr size_t ValuePairs(size_t n_rows) {
  if (kManyRegisters) return n_rows <= 3 ? 4 : 2;
  return n_rows == 1 ? 4 : n_rows <= 3 ? 2 : 1;
}

// The blocks of one span of one kv head: keys [head_dim / 2][16][2] in bf16, [head_dim / 2][2][16] in f32; values
// [16][head_dim]. Both have 32 elements of keys a pair of dimensions.
template <typename T>
struct SpanBlocks {
  const T* keys[kSpanBlocks];
  const T* values[kSpanBlocks];
};

inline constexpr size_t kKeyPair = 2 * kKvBlockTokens;

// Asks for n_bytes that will be needed a span later: some microseconds ahead in decode.
HWY_INLINE void PrefetchBytes(const void* at, size_t n_bytes) {
  for (size_t i = 0; i < n_bytes; i += kAlignment) __builtin_prefetch(static_cast<const uint8_t*>(at) + i, 0, 2);
}

template <class D>
HWY_INLINE hn::Vec<D> EvenHalves(D d, const Bf16* from) {
  const hn::RebindToUnsigned<D> du;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::LoadU(du, reinterpret_cast<const uint32_t*>(from))));
}
template <class D>
HWY_INLINE hn::Vec<D> OddHalves(D d, const Bf16* from) {
  const hn::RebindToUnsigned<D> du;
  const auto mask = hn::Set(du, 0xFFFF0000u);
  return hn::BitCast(d, hn::And(hn::LoadU(du, reinterpret_cast<const uint32_t*>(from)), mask));
}

// Keys of a pair of dimensions, for the kLanes tokens whose keys start at `from`.
HWY_INLINE const Bf16* AtToken(const Bf16* block, size_t token) { return block + 2 * token; }
HWY_INLINE const float* AtToken(const float* block, size_t token) { return block + token; }
HWY_INLINE FloatVec FirstKeys(const Bf16* from) { return EvenHalves(FloatTag(), from); }
HWY_INLINE FloatVec SecondKeys(const Bf16* from) { return OddHalves(FloatTag(), from); }
HWY_INLINE FloatVec FirstKeys(const float* from) { return hn::LoadU(FloatTag(), from); }
HWY_INLINE FloatVec SecondKeys(const float* from) { return hn::LoadU(FloatTag(), from + kKvBlockTokens); }

// Widens a block of keys to the f32 layout, and asks for the bytes of `ahead`.
HWY_INLINE void StageKeys(const Bf16* HWY_RESTRICT keys, size_t head_dim, const Bf16* ahead, float* HWY_RESTRICT to) {
  const FloatTag d;
  for (size_t dim = 0; dim < head_dim; dim += 2, keys += kKeyPair, ahead += kKeyPair, to += kKeyPair) {
    PrefetchBytes(ahead, kKeyPair * sizeof(Bf16));
    for (size_t token = 0; token < kKvBlockTokens; token += kLanes) {
      hn::Store(EvenHalves(d, keys + 2 * token), d, to + token);
      hn::Store(OddHalves(d, keys + 2 * token), d, to + kKvBlockTokens + token);
    }
  }
}

// scores[row][i] = q[row] . key of token first + i, for the tile's tokens. kAhead: asks for the bytes of `ahead`.
template <size_t kRows, bool kAhead, typename T>
HWY_INLINE void ScoreTile(const float* HWY_RESTRICT q, size_t head_dim, const SpanBlocks<T>& blocks,
                          const SpanBlocks<T>& ahead, size_t first, float* HWY_RESTRICT scores) {
  constexpr size_t kVectors = ScoreVectors(kRows);
  constexpr size_t kBlocks = std::max<size_t>(1, kVectors * kLanes / kKvBlockTokens);
  const FloatTag d;
  const size_t stride = QueryStride(head_dim);
  const T* from[kVectors];
  DF_UNROLL
  for (size_t v = 0; v < kVectors; ++v) {
    const size_t token = first + v * kLanes;
    from[v] = AtToken(blocks.keys[token / kKvBlockTokens], token % kKvBlockTokens);
  }
  FloatVec sum[kRows][kVectors];
  DF_UNROLL
  for (size_t r = 0; r < kRows; ++r) {
    DF_UNROLL
    for (size_t v = 0; v < kVectors; ++v) sum[r][v] = hn::Zero(d);
  }
  for (size_t dim = 0; dim < head_dim; dim += 2) {
    const size_t at = dim * kKvBlockTokens;
    DF_UNROLL
    for (size_t b = 0; kAhead && b < kBlocks; ++b) {
      PrefetchBytes(ahead.keys[first / kKvBlockTokens + b] + at, kKeyPair * sizeof(T));
    }
    FloatVec key[kVectors];
    DF_UNROLL
    for (size_t v = 0; v < kVectors; ++v) key[v] = FirstKeys(from[v] + at);
    DF_UNROLL
    for (size_t r = 0; r < kRows; ++r) {
      const FloatVec x = hn::Set(d, q[r * stride + dim]);
      DF_UNROLL
      for (size_t v = 0; v < kVectors; ++v) sum[r][v] = hn::MulAdd(x, key[v], sum[r][v]);
    }
    DF_UNROLL
    for (size_t v = 0; v < kVectors; ++v) key[v] = SecondKeys(from[v] + at);
    DF_UNROLL
    for (size_t r = 0; r < kRows; ++r) {
      const FloatVec x = hn::Set(d, q[r * stride + dim + 1]);
      DF_UNROLL
      for (size_t v = 0; v < kVectors; ++v) sum[r][v] = hn::MulAdd(x, key[v], sum[r][v]);
    }
  }
  DF_UNROLL
  for (size_t r = 0; r < kRows; ++r) {
    DF_UNROLL
    for (size_t v = 0; v < kVectors; ++v) hn::StoreU(sum[r][v], d, scores + r * kScoreStride + first + v * kLanes);
  }
}

// Values of two vectors of dimensions: even and odd ones of a pair of vectors in bf16, as they follow in f32. Sums are
// kept in this order; StoreDims puts them back.
template <class D>
HWY_INLINE void LoadValues(D d, const Bf16* from, hn::Vec<D>& v0, hn::Vec<D>& v1) {
  v0 = EvenHalves(d, from);
  v1 = OddHalves(d, from);
}
template <class D>
HWY_INLINE void LoadValues(D d, const float* from, hn::Vec<D>& v0, hn::Vec<D>& v1) {
  v0 = hn::LoadU(d, from);
  v1 = hn::LoadU(d, from + hn::MaxLanes(d));
}
template <class D>
HWY_INLINE void StoreDims(D d, hn::Vec<D> v0, hn::Vec<D> v1, const Bf16* /*type*/, float* to) {
  hn::StoreInterleaved2(v0, v1, d, to);
}
template <class D>
HWY_INLINE void StoreDims(D d, hn::Vec<D> v0, hn::Vec<D> v1, const float* /*type*/, float* to) {
  hn::StoreU(v0, d, to);
  hn::StoreU(v1, d, to + hn::MaxLanes(d));
}

// What AddValues reads: weights [rows] and the values of some tokens of a span.
template <typename T>
struct WeightedValues {
  const float* weights;
  const SpanBlocks<T>* blocks;
  const SpanBlocks<T>* ahead;
  TokenRange tokens;  // within the span
  size_t head_dim;
};

// Sums of kRows rows over 2 kPairs vectors of dimensions from `dim` on: += weight * value over the tokens, in order.
template <size_t kRows, size_t kPairs, bool kAhead, class D, typename T>
HWY_INLINE void AddValuesTile(D d, const WeightedValues<T>& from, size_t dim, float* HWY_RESTRICT acc, size_t stride) {
  constexpr size_t kWidth = hn::MaxLanes(D());
  hn::Vec<D> sum[kRows][2 * kPairs];
  DF_UNROLL
  for (size_t r = 0; r < kRows; ++r) {
    DF_UNROLL
    for (size_t v = 0; v < 2 * kPairs; ++v) sum[r][v] = hn::LoadU(d, acc + r * stride + dim + v * kWidth);
  }
  for (size_t block = from.tokens.begin / kKvBlockTokens; block * kKvBlockTokens < from.tokens.end; ++block) {
    const TokenRange all = {.begin = block * kKvBlockTokens, .end = (block + 1) * kKvBlockTokens};
    const TokenRange tokens = Intersect(from.tokens, all);
    const T* HWY_RESTRICT values = from.blocks->values[block] + (tokens.begin - all.begin) * from.head_dim + dim;
    // The next span's block in the order of its bytes: this tile's share of them, a token's width at a time.
    const T* HWY_RESTRICT ahead = from.ahead->values[block] + dim * kKvBlockTokens;
    DF_UNROLL_BY_TWO
    for (size_t token = tokens.begin; token < tokens.end; ++token) {
      if (kAhead) PrefetchBytes(ahead, 2 * kPairs * kWidth * sizeof(T));
      ahead += 2 * kPairs * kWidth;
      hn::Vec<D> value[2 * kPairs];
      DF_UNROLL
      for (size_t p = 0; p < kPairs; ++p) {
        LoadValues(d, values + 2 * p * kWidth, value[2 * p], value[2 * p + 1]);
      }
      values += from.head_dim;
      DF_UNROLL
      for (size_t r = 0; r < kRows; ++r) {
        const auto weight = hn::Set(d, from.weights[r * kScoreStride + token]);
        DF_UNROLL
        for (size_t v = 0; v < 2 * kPairs; ++v) sum[r][v] = hn::MulAdd(weight, value[v], sum[r][v]);
      }
    }
  }
  DF_UNROLL
  for (size_t r = 0; r < kRows; ++r) {
    DF_UNROLL
    for (size_t v = 0; v < 2 * kPairs; ++v) hn::StoreU(sum[r][v], d, acc + r * stride + dim + v * kWidth);
  }
}

// Calls body(d, dim) for the dimensions in pairs of vectors: whole ones, then shorter ones down to single lanes.
template <size_t kWidth = kLanes, class Body>
HWY_INLINE void ForDimPairs(size_t dim, size_t head_dim, const Body& body) {
  const hn::CappedTag<float, kWidth> d;
  for (; dim + 2 * kWidth <= head_dim; dim += 2 * kWidth) body(d, dim);
  if constexpr (kWidth > 1) ForDimPairs<kWidth / 2>(dim, head_dim, body);
}

// Dimensions from `dim` on that fill no tile: few head sizes have any.
template <size_t kRows, typename T>
HWY_NOINLINE void AddLastValues(const WeightedValues<T>& from, size_t dim, float* HWY_RESTRICT acc, size_t stride) {
  ForDimPairs(dim, from.head_dim,
              [&](auto narrow, size_t at) HWY_ATTR { AddValuesTile<kRows, 1, false>(narrow, from, at, acc, stride); });
}

template <size_t kRows, bool kAhead, typename T>
HWY_INLINE void AddValues(const WeightedValues<T>& from, float* HWY_RESTRICT acc, size_t stride) {
  constexpr size_t kPairs = ValuePairs(kRows);
  const FloatTag d;
  size_t dim = 0;
  for (; dim + 2 * kPairs * kLanes <= from.head_dim; dim += 2 * kPairs * kLanes) {
    AddValuesTile<kRows, kPairs, kAhead>(d, from, dim, acc, stride);
  }
  if (dim < from.head_dim) AddLastValues<kRows>(from, dim, acc, stride);
}

}  // namespace df::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DELTAFOLD_KERNELS_CPU_ATTENTION_TILE_INL_H_
