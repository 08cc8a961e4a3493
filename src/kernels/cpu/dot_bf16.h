// Products of bf16 pairs (vdpbf16ps of AVX512_BF16), which Highway's targets here do not express: prefill's register
// kernel with what makes its operands, and the instruction's peak (limits.h).
//
//   sums[g][r] += sum_k x[k][g] * w[k][r]      32 outputs r; a pair of columns a step, f32 sums over ascending pairs
//
// Denormal operands and sums count as 0. The order of an output's sum is the same in a group of any size. Everything
// but HasDotBf16 may be called only where it says yes.
#ifndef DELTAFOLD_KERNELS_CPU_DOT_BF16_H_
#define DELTAFOLD_KERNELS_CPU_DOT_BF16_H_

#include <cstddef>
#include <cstdint>

namespace df::kernels::cpu {

// Whether the processor has the instruction.
bool HasDotBf16();

// Rows of the largest register kernel: 14 x 2 vectors of sums, 2 of weights and one of x in 32 registers.
inline constexpr size_t kDotBf16Group = 14;

struct DotBf16Args {
  const uint8_t* weights = nullptr;  // [n_pairs][32][2] bf16: columns of a P32 tile
  size_t n_pairs = 0;
  const uint32_t* x = nullptr;  // [n_pairs][group size] pairs, the even column in the low half
  float* sums = nullptr;        // [group size][32]
};

// By group size - 1.
using DotBf16Fn = void (*)(const DotBf16Args& args);
extern const DotBf16Fn kDotBf16Products[kDotBf16Group];

// `n` rows (at most kDotBf16Group) of d_in f32, rounded to nearest even: to [ceil(d_in/2)][n] pairs, padding zero.
void PackDotBf16Rows(const float* const* rows, size_t n, size_t d_in, uint32_t* to);

// A panel [n_pairs][2][32] f32, rounded to nearest even: to [n_pairs][32][2] bf16.
void PackDotBf16Panel(const float* panel, size_t n_pairs, uint8_t* to);

// `n_steps` of independent products on the calling thread; returns the FLOPs done (a multiply-add counts 2), 0 without
// the instruction.
double DotBf16(size_t n_steps);

}  // namespace df::kernels::cpu

#endif  // DELTAFOLD_KERNELS_CPU_DOT_BF16_H_
