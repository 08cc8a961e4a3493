#include "kernels/cpu/dot_bytes.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace df::kernels::cpu {

#if defined(__x86_64__)
namespace {

// 5 cycles of latency x 2 a cycle want 10 chains.
constexpr size_t kChains = 12;

__attribute__((target("avx512f,avx512vnni"))) double DotBytesVnni(size_t n_steps) {
  const __m512i ones = _mm512_set1_epi32(0x01010101);
  __m512i sum[kChains];
#pragma GCC unroll 16
  for (size_t i = 0; i < kChains; ++i) sum[i] = _mm512_set1_epi32(static_cast<int>(i));
  for (size_t step = 0; step < n_steps; ++step) {
#pragma GCC unroll 16
    for (size_t i = 0; i < kChains; ++i) {
      sum[i] = _mm512_dpbusd_epi32(sum[i], ones, ones);
      // Whatever the compiler knows about these sums: they are to be computed.
      asm volatile("" : "+v"(sum[i]));
    }
  }
  return 2.0 * 64 * static_cast<double>(n_steps * kChains);
}

}  // namespace

double DotBytes(size_t n_steps) { return __builtin_cpu_supports("avx512vnni") != 0 ? DotBytesVnni(n_steps) : 0; }
#else
double DotBytes(size_t) { return 0; }
#endif

}  // namespace df::kernels::cpu
