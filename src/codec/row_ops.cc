#include "codec/row_ops.h"

#include "codec/cpu/row_ops.h"
#include "codec/ref/row_ops.h"
#include "kernels/target.h"

namespace df::row_ops {

using kernels::IsScalarTarget;

void Difference(const WeightPair& pair, size_t row, std::span<float> out) {
  (IsScalarTarget() ? ref::Difference : cpu::Difference)(pair, row, out);
}

void PackSigns(std::span<const float> values, uint8_t* bits) {
  (IsScalarTarget() ? ref::PackSigns : cpu::PackSigns)(values, bits);
}

void SubtractSigns(const uint8_t* bits, float scale, std::span<float> values) {
  return IsScalarTarget() ? ref::SubtractSigns(bits, scale, values) : cpu::SubtractSigns(bits, scale, values);
}

void SubtractSigns(const uint8_t* bits, float scale, std::span<const float> col_scale, std::span<float> values) {
  return IsScalarTarget() ? ref::SubtractSigns(bits, scale, col_scale, values)
                          : cpu::SubtractSigns(bits, scale, col_scale, values);
}

double AbsSum(std::span<const float> values) { return (IsScalarTarget() ? ref::AbsSum : cpu::AbsSum)(values); }

Magnitudes MagnitudesOf(std::span<const float> values) {
  return (IsScalarTarget() ? ref::MagnitudesOf : cpu::MagnitudesOf)(values);
}

Magnitudes SignsOfDifference(const WeightPair& pair, size_t row, size_t d_in, uint8_t* bits) {
  return (IsScalarTarget() ? ref::SignsOfDifference : cpu::SignsOfDifference)(pair, row, d_in, bits);
}

float LargestDifference(const WeightPair& pair, size_t row, size_t d_in) {
  return (IsScalarTarget() ? ref::LargestDifference : cpu::LargestDifference)(pair, row, d_in);
}

double AbsDot(std::span<const float> values, std::span<const double> v) {
  return (IsScalarTarget() ? ref::AbsDot : cpu::AbsDot)(values, v);
}

void AbsAxpy(double u, std::span<const float> values, std::span<double> sum) {
  (IsScalarTarget() ? ref::AbsAxpy : cpu::AbsAxpy)(u, values, sum);
}

double SumOfSquares(std::span<const double> values) {
  return (IsScalarTarget() ? ref::SumOfSquares : cpu::SumOfSquares)(values);
}

ErrorSums SumErrors(std::span<const float> d, std::span<const float> r) {
  return (IsScalarTarget() ? ref::SumErrors : cpu::SumErrors)(d, r);
}

void ReadRow(const TensorView& tensor, size_t row, std::span<float> out) {
  (IsScalarTarget() ? ref::ReadRow : cpu::ReadRow)(tensor, row, out);
}

bool Narrow(std::span<const float> from, DType dtype, uint8_t* to) {
  return (IsScalarTarget() ? ref::Narrow : cpu::Narrow)(from, dtype, to);
}

}  // namespace df::row_ops
