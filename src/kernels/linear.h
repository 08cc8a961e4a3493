// The linear layer of a mixed batch: base product for all rows, each segment's delta folded in.
//
//   y = gain * ( W x + sum_p row_p * ((col_p * x) S_p^T) + sum_q scale_q (x A_q^T) B_q^T + T x ) + bias
//
// with T the rows of bytes (step_k q_k at output index_k, else 0),
// where W is the base weight or the segment's raw replacement. For outputs listed in `rows` the row's value stands for
// W, all planes and T (low-rank pairs, gain and bias still apply: an adapter may lie on top of a changed row). Outputs
// beyond the base's d_out that no replaced row covers see W = 0.
//
// Two paths. Decode: base weights are read once for all rows, signs are multiplied apart, by tables (exactly, or to 14
// bits: KernelOptions::sign_kernel). Prefill: one blocked GEMM per segment, the signs folded into the weight tile while
// it is unpacked (W_eff exists as a tile only, in f32). With options.batch_invariant a row's phase is its path, and
// `auto` means exact. Else many decode rows of one variant are folded, a few prefill rows are not, and `auto` takes the
// 14-bit tables from 2 sign products (row x plane) on; with AVX-512 from 4, on AMD's cores with AVX-512 from the first.
// linear_path.h has the choice, docs/kernels.md the loops, cost.h the cost.
//
// With options.prefill_dtype kBf16 (prefill_dtype.h must allow it) x and W + planes of prompts by panels (kPrefill) are
// rounded to bf16 and multiplied so; everything else is as it is in f32: replaced rows, rows of bytes, low-rank pairs,
// gain, bias, decode.
#ifndef DELTAFOLD_KERNELS_LINEAR_H_
#define DELTAFOLD_KERNELS_LINEAR_H_

#include <span>

#include "kernels/packed.h"
#include "tensor/kernel_context.h"
#include "tensor/mat.h"

namespace df::kernels {

enum class Phase : uint8_t { kPrefill, kDecode };

// Rows [begin, end) of the batch that share phase and variant. Segments are disjoint and ascending, and need not cover
// every row; rows outside stay untouched.
struct LinearSegment {
  size_t begin = 0;
  size_t end = 0;
  Phase phase = Phase::kDecode;
  const PackedDelta* delta = nullptr;  // null = base
};

struct LinearWeight {
  PackedWeight weight;  // [d_out, d_in]
  Buffer<float> bias;   // [d_out] or empty
};

// x [n, d_in] f32, y [n, >= max d_out] f32 (a segment writes its own d_out columns), not aliasing. Any alignment, any
// stride >= cols. Sums run in f32 over fixed blocks of at most 512 columns:
//   |y - exact| <= (512 + ceil(d_in/32) + rank + 8) * 2^-24 * m,   m = the same formula over absolute values.
// 14-bit tables add, for each plane and each block of n = 512 columns, at most
//   |gain * row_p| * ceil(n/8) * q,   q = the block's largest |sum of 4 neighbouring col_p * x| / 8191,
// where an x beyond 16 times its block's rms does not count. By experience that is 4e-4 of the variant's part.
// Rounding to bf16 adds at most (2^-7 + 2^-15) * m: 2^-8 for x and as much for W + planes, where bf16 weights without
// planes are exact; beside that an |x|, weight or partial sum below 2^-126 may count as 0, and one beyond 3.39e38 is
// infinite. Makes of processors may differ in the last bits: how a pair's sum is rounded is the instruction's own.
// With options.batch_invariant the path and the order of summation of a row depend on (phase, weights, delta) alone:
// bits do not change with the other rows, the segments' order or the number of threads. No allocation once
// context.scratch has grown. Engine thread only.
void Linear(KernelContext& context, const LinearWeight& base, std::span<const LinearSegment> segments,
            MatView<const float> x, MatView<float> y);

}  // namespace df::kernels

#endif  // DELTAFOLD_KERNELS_LINEAR_H_
