// Inner loops of attention over one KV block of 16 tokens: staging of keys (transposed) and values in f32, scores, and
// the weighted sum of values. Included once a vector target.
//
// Every row is computed alike whatever group it is in: a score is two chains over even and odd dimensions, an output
// element one chain over the tokens. Row groups only decide how often a staged vector is loaded.
#if defined(DELTAFOLD_KERNELS_CPU_ATTENTION_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAFOLD_KERNELS_CPU_ATTENTION_TILE_INL_H_
#undef DELTAFOLD_KERNELS_CPU_ATTENTION_TILE_INL_H_
#else
#define DELTAFOLD_KERNELS_CPU_ATTENTION_TILE_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "base/float16.h"
#include "hwy/highway.h"
#include "kernels/attention.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace df::kernels::cpu::HWY_NAMESPACE {
static_assert(kKvBlockTokens % kLanes == 0, "a block of tokens is whole vectors");

// Accumulators of the inner loops: what leaves room for operands in 32 (AVX-512) or 16 registers.
#if HWY_TARGET == HWY_AVX3
inline constexpr size_t kScoreRows = 8;
inline constexpr size_t kAccumulators = 16;
#else
inline constexpr size_t kScoreRows = 4;
inline constexpr size_t kAccumulators = 8;
#endif

// Asks for memory that will be needed soon, a few lines at a time between other work: all at once would fill the queue
// of outstanding loads.
struct Prefetcher {
  const uint8_t* at = nullptr;
  size_t n_lines = 0;
  size_t n_per_step = 0;

  // A null `from` asks for nothing.
  HWY_INLINE Prefetcher(const void* from, size_t n_bytes, size_t n_steps)
      : at(static_cast<const uint8_t*>(from)),
        n_lines(from == nullptr ? 0 : (n_bytes + kAlignment - 1) / kAlignment),
        n_per_step((n_lines + n_steps) / (n_steps + 1) + 1) {}

  HWY_INLINE void Step() {
    const size_t n = n_lines < n_per_step ? n_lines : n_per_step;
    for (size_t i = 0; i < n; ++i) __builtin_prefetch(at + i * kAlignment, 0, 2);
    at += n * kAlignment;
    n_lines -= n;
  }
};

// Lane 4b + l = word l of token 4b: the first of the four vectors of a 4 x (lanes) transposition.
HWY_INLINE UintVec LoadTokenWords(UintTag d, const uint32_t* HWY_RESTRICT from, size_t stride) {
  const auto even = hn::LoadDup128(d, from);
  if (kLanes == 4) return even;
  const auto low = hn::OddEvenBlocks(hn::LoadDup128(d, from + 4 * stride), even);
  if (kLanes == 8) return low;
  const auto high = hn::OddEvenBlocks(hn::LoadDup128(d, from + 12 * stride), hn::LoadDup128(d, from + 8 * stride));
  return hn::ConcatUpperLower(d, high, low);
}

// Stores 4 words of `Lanes` tokens as words x tokens; Store(word, vector) takes each.
template <class StoreWord>
HWY_INLINE void TransposeWords(UintTag d, const uint32_t* HWY_RESTRICT from, size_t stride, const StoreWord& store) {
  const auto v0 = LoadTokenWords(d, from, stride);
  const auto v1 = LoadTokenWords(d, from + stride, stride);
  const auto v2 = LoadTokenWords(d, from + 2 * stride, stride);
  const auto v3 = LoadTokenWords(d, from + 3 * stride, stride);
  const auto low_02 = hn::InterleaveLower(d, v0, v2);
  const auto low_13 = hn::InterleaveLower(d, v1, v3);
  const auto high_02 = hn::InterleaveUpper(d, v0, v2);
  const auto high_13 = hn::InterleaveUpper(d, v1, v3);
  store(0, hn::InterleaveLower(d, low_02, low_13));
  store(1, hn::InterleaveUpper(d, low_02, low_13));
  store(2, hn::InterleaveLower(d, high_02, high_13));
  store(3, hn::InterleaveUpper(d, high_02, high_13));
}

// keys [16][head_dim] -> tile [head_dim][16], 64-byte aligned. `next` (or null) is a block to be staged later.
HWY_INLINE void StageKeys(const float* HWY_RESTRICT keys, size_t head_dim, const void* next, float* HWY_RESTRICT tile) {
  size_t dim = 0;
  const UintTag d;
  const FloatTag df;
  Prefetcher ahead(next, head_dim * kKvBlockTokens * sizeof(*keys), head_dim / 4);
  for (; dim + 4 <= head_dim; dim += 4) {
    ahead.Step();
    for (size_t t = 0; t < kKvBlockTokens; t += kLanes) {
      const auto* from = reinterpret_cast<const uint32_t*>(keys + t * head_dim + dim);
      TransposeWords(d, from, head_dim, [&](size_t i, UintVec words) HWY_ATTR {
        hn::Store(hn::BitCast(df, words), df, tile + (dim + i) * kKvBlockTokens + t);
      });
    }
  }
  for (; dim < head_dim; ++dim) {
    for (size_t t = 0; t < kKvBlockTokens; ++t) tile[dim * kKvBlockTokens + t] = keys[t * head_dim + dim];
  }
}

// As above from bf16: a word is a pair of dimensions, the lower half the even one.
HWY_INLINE void StageKeys(const Bf16* HWY_RESTRICT keys, size_t head_dim, const void* next, float* HWY_RESTRICT tile) {
  size_t dim = 0;
  const UintTag d;
  const FloatTag df;
  Prefetcher ahead(next, head_dim * kKvBlockTokens * sizeof(*keys), head_dim / 8);
  const auto odd_half = hn::Set(d, 0xFFFF0000u);
  for (; dim + 8 <= head_dim; dim += 8) {
    ahead.Step();
    for (size_t t = 0; t < kKvBlockTokens; t += kLanes) {
      const auto* from = reinterpret_cast<const uint32_t*>(keys + t * head_dim + dim);
      TransposeWords(d, from, head_dim / 2, [&](size_t i, UintVec words) HWY_ATTR {
        float* HWY_RESTRICT to = tile + (dim + 2 * i) * kKvBlockTokens + t;
        hn::Store(hn::BitCast(df, hn::ShiftLeft<16>(words)), df, to);
        hn::Store(hn::BitCast(df, hn::And(words, odd_half)), df, to + kKvBlockTokens);
      });
    }
  }
  for (; dim < head_dim; ++dim) {
    for (size_t t = 0; t < kKvBlockTokens; ++t) tile[dim * kKvBlockTokens + t] = ToFloat(keys[t * head_dim + dim]);
  }
}

// values [16][head_dim] -> tile [16][padded], padded = head_dim rounded up to whole vectors, the rest zero.
HWY_INLINE void StageValues(const Bf16* HWY_RESTRICT values, size_t head_dim, size_t padded, const void* next,
                            float* HWY_RESTRICT tile) {
  const FloatTag df;
  const UintTag du;
  const hn::Rebind<uint16_t, FloatTag> d16;
  Prefetcher ahead(next, head_dim * kKvBlockTokens * sizeof(*values), kKvBlockTokens);
  for (size_t t = 0; t < kKvBlockTokens; ++t) {
    ahead.Step();
    const auto* HWY_RESTRICT from = reinterpret_cast<const uint16_t*>(values + t * head_dim);
    float* HWY_RESTRICT to = tile + t * padded;
    size_t dim = 0;
    for (; dim + kLanes <= head_dim; dim += kLanes) {
      const auto words = hn::PromoteTo(du, hn::LoadU(d16, from + dim));
      hn::Store(hn::BitCast(df, hn::ShiftLeft<16>(words)), df, to + dim);
    }
    for (; dim < padded; ++dim) to[dim] = dim < head_dim ? ToFloat(values[t * head_dim + dim]) : 0.0F;
  }
}

HWY_INLINE void StageValues(const float* HWY_RESTRICT values, size_t head_dim, size_t padded, const void* next,
                            float* HWY_RESTRICT tile) {
  Prefetcher ahead(next, head_dim * kKvBlockTokens * sizeof(*values), kKvBlockTokens);
  for (size_t t = 0; t < kKvBlockTokens; ++t) {
    ahead.Step();
    for (size_t dim = 0; dim < padded; ++dim) {
      tile[t * padded + dim] = dim < head_dim ? values[t * head_dim + dim] : 0.0F;
    }
  }
}

// Scores of kRows rows q [kRows][head_dim] against a key tile: scores[row * kSpan + token].
template <size_t kRows, size_t kSpan>
HWY_INLINE void ScoreRows(const float* HWY_RESTRICT q, size_t head_dim, const float* HWY_RESTRICT tile,
                          float* HWY_RESTRICT scores) {
  const FloatTag d;
  for (size_t t = 0; t < kKvBlockTokens; t += kLanes) {
    FloatVec even[kRows];
    FloatVec odd[kRows];
    DF_UNROLL
    for (size_t r = 0; r < kRows; ++r) even[r] = odd[r] = hn::Zero(d);
    for (size_t dim = 0; dim < head_dim; dim += 2) {
      const FloatVec k0 = hn::Load(d, tile + dim * kKvBlockTokens + t);
      const FloatVec k1 = hn::Load(d, tile + (dim + 1) * kKvBlockTokens + t);
      DF_UNROLL
      for (size_t r = 0; r < kRows; ++r) {
        even[r] = hn::MulAdd(hn::Set(d, q[r * head_dim + dim]), k0, even[r]);
        odd[r] = hn::MulAdd(hn::Set(d, q[r * head_dim + dim + 1]), k1, odd[r]);
      }
    }
    DF_UNROLL
    for (size_t r = 0; r < kRows; ++r) hn::Store(hn::Add(even[r], odd[r]), d, scores + r * kSpan + t);
  }
}

HWY_INLINE FloatVec LoadValues(const float* from) { return hn::LoadU(FloatTag(), from); }
HWY_INLINE FloatVec LoadValues(const Bf16* from) {
  const hn::Rebind<uint16_t, FloatTag> d16;
  const auto halves = hn::LoadU(d16, reinterpret_cast<const uint16_t*>(from));
  return hn::BitCast(FloatTag(), hn::ShiftLeft<16>(hn::PromoteTo(UintTag(), halves)));
}

// Values of some tokens of a block: staged, or as they lie in the pool where they are whole vectors.
template <typename T>
struct WeightedValues {
  const T* values = nullptr;
  size_t stride = 0;
  size_t n_tokens = 0;
};

// Weighted values of kRows rows and kVectors vectors of dimensions: acc[row] += sum over the tokens, in order.
template <size_t kRows, size_t kVectors, size_t kSpan, typename T>
HWY_INLINE void AddValuesTile(const float* HWY_RESTRICT weights, const WeightedValues<T>& from, size_t dim,
                              float* HWY_RESTRICT acc, size_t padded) {
  const FloatTag d;
  FloatVec sum[kRows][kVectors];
  DF_UNROLL
  for (size_t r = 0; r < kRows; ++r) {
    DF_UNROLL
    for (size_t v = 0; v < kVectors; ++v) sum[r][v] = hn::Load(d, acc + r * padded + dim + v * kLanes);
  }
  for (size_t t = 0; t < from.n_tokens; ++t) {
    FloatVec value[kVectors];
    DF_UNROLL
    for (size_t v = 0; v < kVectors; ++v) value[v] = LoadValues(from.values + t * from.stride + dim + v * kLanes);
    DF_UNROLL
    for (size_t r = 0; r < kRows; ++r) {
      const FloatVec weight = hn::Set(d, weights[r * kSpan + t]);
      DF_UNROLL
      for (size_t v = 0; v < kVectors; ++v) sum[r][v] = hn::MulAdd(weight, value[v], sum[r][v]);
    }
  }
  DF_UNROLL
  for (size_t r = 0; r < kRows; ++r) {
    DF_UNROLL
    for (size_t v = 0; v < kVectors; ++v) hn::Store(sum[r][v], d, acc + r * padded + dim + v * kLanes);
  }
}

// The same over all dimensions.
template <size_t kRows, size_t kSpan, typename T>
HWY_INLINE void AddValues(const float* HWY_RESTRICT weights, const WeightedValues<T>& from, float* HWY_RESTRICT acc,
                          size_t padded) {
  constexpr size_t kVectors = kAccumulators / kRows < 8 ? kAccumulators / kRows : 8;
  size_t dim = 0;
  for (; dim + kVectors * kLanes <= padded; dim += kVectors * kLanes) {
    AddValuesTile<kRows, kVectors, kSpan>(weights, from, dim, acc, padded);
  }
  for (; dim < padded; dim += kLanes) AddValuesTile<kRows, 1, kSpan>(weights, from, dim, acc, padded);
}

}  // namespace df::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DELTAFOLD_KERNELS_CPU_ATTENTION_TILE_INL_H_
