// The inner loops of the codecs: one row of a weight at a time, as f32 in the cache. ref/ has them as plain loops, cpu/
// with Highway; the target in force (kernels/target.h) decides. Every target gives the same bits as ref/, for any row:
// one rounding an operation, and sums run in a fixed number of f64 lanes that are folded in a fixed order.
#ifndef DELTAFOLD_CODEC_ROW_OPS_H_
#define DELTAFOLD_CODEC_ROW_OPS_H_

#include <cstdint>
#include <span>

#include "codec/codec.h"

namespace df::row_ops {

// Lanes of the sums: element j belongs to lane j % lanes, and lanes are folded by halves. 16 are four registers of
// AVX2, two of AVX-512: enough chains to hide the adder's latency of four cycles. SumErrors has three sums at once.
inline constexpr size_t kSumLanes = 16;
inline constexpr size_t kErrorLanes = 8;

// out = f32(fine_tune) - f32(base) of row `row`, never -0. [d_in]; `row` < both tensors' rows.
void Difference(const WeightPair& pair, size_t row, std::span<float> out);

// bits [ceil(n/8)]: bit i of byte b = 1 iff values[8b+i] >= 0; padding bits 0. No value is -0 or NaN.
void PackSigns(std::span<const float> values, uint8_t* bits);

// values -= +-scale by the sign bits; one f32 operation an element. Results of 0 are +0.
void SubtractSigns(const uint8_t* bits, float scale, std::span<float> values);
// values_j -= +-(scale * col_scale_j); two f32 operations an element. col_scale [n].
void SubtractSigns(const uint8_t* bits, float scale, std::span<const float> col_scale, std::span<float> values);

double AbsSum(std::span<const float> values);  // sum |r_j|

// What is to be known of the m_j = |r_j| for a scale and its error, in one look and, mostly, in f32: blocks of
// kMagnitudeBlock values are summed in kMagnitudeLanes lanes of f32, value j in lane 16 (j % 2) + j % 32 / 2, and these
// added up in f64. What is summed is how far the m_j lie above a pivot p, the least of the first kMagnitudeLanes of
// them: nothing cancels where all are nearly equal. A sum of terms t_j is so within 2^-19 sum |t_j| (16 additions, a
// product and a difference). Where IsNarrow says no, p = 0 and sums run in f64 as in AbsSum.
inline constexpr size_t kMagnitudeLanes = 32;
inline constexpr size_t kMagnitudeBlock = 512;
struct Magnitudes {
  size_t n = 0;
  double pivot = 0;
  double above = 0;          // sum_j (m_j - p)
  double above_squares = 0;  // sum_j (m_j - p)^2
  float smallest = 0;        // 0 of no values
  float largest = 0;         // not finite where a value is not

  double Sum() const { return static_cast<double>(n) * pivot + above; }
  double Squares() const { return SquaresAbout(0); }
  // sum_j (m_j - a)^2
  double SquaresAbout(double a) const {
    const double off = pivot - a;
    return above_squares + 2 * off * above + static_cast<double>(n) * off * off;
  }
};
// Whether f32 will do: squares keep within it, and the pivot is no more than the mean.
constexpr bool IsNarrow(float largest, double above) {
  return (largest == 0 || (largest >= 0x1p-40F && largest <= 0x1p60F)) && above >= 0;
}
Magnitudes MagnitudesOf(std::span<const float> values);
// Difference, PackSigns and MagnitudesOf in one look that stores no row: the same bits. [d_in] columns.
Magnitudes SignsOfDifference(const WeightPair& pair, size_t row, size_t d_in, uint8_t* bits);
// The largest |difference| of a row: 0 where it is unchanged, not finite where a weight or a difference is not.
float LargestDifference(const WeightPair& pair, size_t row, size_t d_in);
double AbsDot(std::span<const float> values, std::span<const double> v);       // sum |r_j| v_j
void AbsAxpy(double u, std::span<const float> values, std::span<double> sum);  // sum_j += u |r_j|
double SumOfSquares(std::span<const double> values);
// Sums over d and r = d - d^.
ErrorSums SumErrors(std::span<const float> d, std::span<const float> r);

// out = row `row` of a F32, BF16 or F16 tensor in f32. [d_in]
void ReadRow(const TensorView& tensor, size_t row, std::span<float> out);
// Writes `from` as `dtype` (F32, BF16, F16), rounding to nearest even. False when a finite value became infinite.
bool Narrow(std::span<const float> from, DType dtype, uint8_t* to);

}  // namespace df::row_ops

#endif  // DELTAFOLD_CODEC_ROW_OPS_H_
