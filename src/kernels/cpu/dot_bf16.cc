#include "kernels/cpu/dot_bf16.h"

#include <algorithm>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/check.h"
#include "kernels/packed.h"

namespace df::kernels::cpu {

#if defined(__x86_64__)
namespace {

#define DF_BF16 __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))
#if defined(__clang__)
#define DF_UNROLL _Pragma("clang loop unroll(full)")
#else
#define DF_UNROLL _Pragma("GCC unroll 64")
#endif

constexpr size_t kLanes = 16;
constexpr size_t kVectors = kTileRows / kLanes;
constexpr size_t kPairBytes = 2 * kTileRows * sizeof(uint16_t);
static_assert(kVectors == 2);

DF_BF16 inline __m512 AddDot(__m512 sum, __m512i a, __m512i b) {
  return _mm512_dpbf16_ps(sum, __builtin_bit_cast(__m512bh, a), __builtin_bit_cast(__m512bh, b));
}

template <size_t G>
DF_BF16 void Product(const DotBf16Args& args) {
  __m512 sums[G][kVectors];
  DF_UNROLL
  for (size_t g = 0; g < G; ++g) sums[g][0] = sums[g][1] = _mm512_setzero_ps();
  const uint8_t* w = args.weights;
  const uint32_t* x = args.x;
  for (size_t pair = 0; pair < args.n_pairs; ++pair, w += kPairBytes, x += G) {
    const __m512i low = _mm512_loadu_si512(w), high = _mm512_loadu_si512(w + kPairBytes / 2);
    DF_UNROLL
    for (size_t g = 0; g < G; ++g) {
      const __m512i xg = _mm512_set1_epi32(static_cast<int>(x[g]));
      sums[g][0] = AddDot(sums[g][0], low, xg);
      sums[g][1] = AddDot(sums[g][1], high, xg);
    }
  }
  DF_UNROLL
  for (size_t g = 0; g < G; ++g) {
    float* to = args.sums + g * kTileRows;
    _mm512_storeu_ps(to, _mm512_add_ps(_mm512_loadu_ps(to), sums[g][0]));
    _mm512_storeu_ps(to + kLanes, _mm512_add_ps(_mm512_loadu_ps(to + kLanes), sums[g][1]));
  }
}

// Eight columns of a row from `k` on as four pairs, zero beyond d_in.
DF_BF16 inline __m128i PairsOf(const float* row, size_t k, size_t d_in) {
  const size_t n = std::min<size_t>(8, d_in - k);
  const auto mask = static_cast<__mmask8>((1u << n) - 1);
  return __builtin_bit_cast(__m128i, _mm256_cvtneps_pbh(_mm256_maskz_loadu_ps(mask, row + k)));
}

// Four pairs of four rows into to[pair][row].
DF_BF16 inline void StoreTransposed(const __m128i (&rows)[4], size_t n, uint32_t* to) {
  const __m128i low01 = _mm_unpacklo_epi32(rows[0], rows[1]), low23 = _mm_unpacklo_epi32(rows[2], rows[3]);
  const __m128i high01 = _mm_unpackhi_epi32(rows[0], rows[1]), high23 = _mm_unpackhi_epi32(rows[2], rows[3]);
  const __m128i pairs[4] = {_mm_unpacklo_epi64(low01, low23), _mm_unpackhi_epi64(low01, low23),
                            _mm_unpacklo_epi64(high01, high23), _mm_unpackhi_epi64(high01, high23)};
  for (size_t i = 0; i < 4; ++i) _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i * n), pairs[i]);
}

DF_BF16 void PackRows(const float* const* rows, size_t n, size_t d_in, uint32_t* to) {
  const size_t n_pairs = (d_in + 1) / 2;
  for (size_t pair = 0; pair < n_pairs; pair += 4) {
    size_t g = 0;
    for (; g + 4 <= n && pair + 4 <= n_pairs; g += 4) {
      const __m128i pairs[4] = {PairsOf(rows[g], 2 * pair, d_in), PairsOf(rows[g + 1], 2 * pair, d_in),
                                PairsOf(rows[g + 2], 2 * pair, d_in), PairsOf(rows[g + 3], 2 * pair, d_in)};
      StoreTransposed(pairs, n, to + pair * n + g);
    }
    for (; g < n; ++g) {
      alignas(16) uint32_t pairs[4];
      _mm_store_si128(reinterpret_cast<__m128i*>(pairs), PairsOf(rows[g], 2 * pair, d_in));
      for (size_t i = 0; i < std::min<size_t>(4, n_pairs - pair); ++i) to[(pair + i) * n + g] = pairs[i];
    }
  }
}

// The columns' halves side by side to pairs: 0, 16, 1, 17, ...
alignas(64) constexpr uint16_t kInterleave[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                  8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};

DF_BF16 void PackPanel(const float* panel, size_t n_pairs, uint8_t* to) {
  const __m512i interleave = _mm512_load_si512(kInterleave);
  for (size_t pair = 0; pair < n_pairs; ++pair, panel += 2 * kTileRows, to += kPairBytes) {
    DF_UNROLL
    for (size_t v = 0; v < kVectors; ++v) {
      const __m512 even = _mm512_loadu_ps(panel + v * kLanes), odd = _mm512_loadu_ps(panel + kTileRows + v * kLanes);
      const auto columns = __builtin_bit_cast(__m512i, _mm512_cvtne2ps_pbh(odd, even));
      _mm512_storeu_si512(to + v * kPairBytes / 2, _mm512_permutexvar_epi16(interleave, columns));
    }
  }
}

// 6 cycles of latency at 1 a cycle, or fewer at 2.
constexpr size_t kChains = 12;

DF_BF16 double Peak(size_t n_steps) {
  const __m512i ones = _mm512_set1_epi32(0x3F803F80);
  __m512 sums[kChains];
  DF_UNROLL
  for (size_t i = 0; i < kChains; ++i) sums[i] = _mm512_set1_ps(static_cast<float>(i));
  for (size_t step = 0; step < n_steps; ++step) {
    DF_UNROLL
    for (size_t i = 0; i < kChains; ++i) {
      sums[i] = AddDot(sums[i], ones, ones);
      // Whatever the compiler knows about these sums: they are to be computed.
      asm volatile("" : "+v"(sums[i]));
    }
  }
  return 2.0 * 2 * kLanes * static_cast<double>(n_steps * kChains);
}

}  // namespace

bool HasDotBf16() {
  return __builtin_cpu_supports("avx512bf16") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
         __builtin_cpu_supports("avx512vl") != 0;
}

const DotBf16Fn kDotBf16Products[kDotBf16Group] = {Product<1>,  Product<2>,  Product<3>,  Product<4>, Product<5>,
                                                   Product<6>,  Product<7>,  Product<8>,  Product<9>, Product<10>,
                                                   Product<11>, Product<12>, Product<13>, Product<14>};
void PackDotBf16Rows(const float* const* rows, size_t n, size_t d_in, uint32_t* to) { PackRows(rows, n, d_in, to); }
void PackDotBf16Panel(const float* panel, size_t n_pairs, uint8_t* to) { PackPanel(panel, n_pairs, to); }
double DotBf16(size_t n_steps) { return HasDotBf16() ? Peak(n_steps) : 0; }
#else
bool HasDotBf16() { return false; }
const DotBf16Fn kDotBf16Products[kDotBf16Group] = {};
void PackDotBf16Rows(const float* const*, size_t, size_t, uint32_t*) { DF_CHECK(HasDotBf16()); }
void PackDotBf16Panel(const float*, size_t, uint8_t*) { DF_CHECK(HasDotBf16()); }
double DotBf16(size_t) { return 0; }
#endif

}  // namespace df::kernels::cpu
