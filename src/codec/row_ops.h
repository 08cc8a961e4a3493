// The inner loops of the codecs: one row of a weight at a time, as f32 in the cache. Plain loops of fixed shape which
// the compiler turns into vectors; sums run in eight f64 lanes folded in a fixed order, so that every compiler, vector
// width and number of threads gives the same bits.
#ifndef DELTAFOLD_CODEC_ROW_OPS_H_
#define DELTAFOLD_CODEC_ROW_OPS_H_

#include <cstdint>
#include <span>

#include "codec/codec.h"

namespace df::row_ops {

// out = f32(fine_tune) - f32(base) of row `row`, never -0. [d_in]; `row` < both tensors' rows.
void Difference(const WeightPair& pair, size_t row, std::span<float> out);

// bits [ceil(n/8)]: bit i of byte b = 1 iff values[8b+i] >= 0; padding bits 0. No value is -0 or NaN.
void PackSigns(std::span<const float> values, uint8_t* bits);

// values -= +-scale by the sign bits; one f32 operation an element. Results of 0 are +0.
void SubtractSigns(const uint8_t* bits, float scale, std::span<float> values);
// values_j -= +-(scale * col_scale_j); two f32 operations an element. col_scale [n].
void SubtractSigns(const uint8_t* bits, float scale, std::span<const float> col_scale, std::span<float> values);

double AbsSum(std::span<const float> values);                                  // sum |r_j|
double AbsDot(std::span<const float> values, std::span<const double> v);       // sum |r_j| v_j
void AbsAxpy(double u, std::span<const float> values, std::span<double> sum);  // sum_j += u |r_j|
double SumOfSquares(std::span<const double> values);
// Sums over d and r = d - d^.
ErrorSums SumErrors(std::span<const float> d, std::span<const float> r);

}  // namespace df::row_ops

#endif  // DELTAFOLD_CODEC_ROW_OPS_H_
