// row_ops.h with Highway, for the vector target in force.
#ifndef DELTAFOLD_CODEC_CPU_ROW_OPS_H_
#define DELTAFOLD_CODEC_CPU_ROW_OPS_H_

#include "codec/row_ops.h"

namespace df::row_ops::cpu {

void Difference(const WeightPair& pair, size_t row, std::span<float> out);
void PackSigns(std::span<const float> values, uint8_t* bits);
void SubtractSigns(const uint8_t* bits, float scale, std::span<float> values);
void SubtractSigns(const uint8_t* bits, float scale, std::span<const float> col_scale, std::span<float> values);
double AbsSum(std::span<const float> values);
Magnitudes MagnitudesOf(std::span<const float> values);
Magnitudes SignsOfDifference(const WeightPair& pair, size_t row, size_t d_in, uint8_t* bits);
float LargestDifference(const WeightPair& pair, size_t row, size_t d_in);
double AbsDot(std::span<const float> values, std::span<const double> v);
void AbsAxpy(double u, std::span<const float> values, std::span<double> sum);
double SumOfSquares(std::span<const double> values);
ErrorSums SumErrors(std::span<const float> d, std::span<const float> r);
void ReadRow(const TensorView& tensor, size_t row, std::span<float> out);
bool Narrow(std::span<const float> from, DType dtype, uint8_t* to);

}  // namespace df::row_ops::cpu

#endif  // DELTAFOLD_CODEC_CPU_ROW_OPS_H_
