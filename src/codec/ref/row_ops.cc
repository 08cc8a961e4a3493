#include "codec/ref/row_ops.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "base/float16.h"

namespace df::row_ops::ref {
namespace {

template <size_t kLanes>
double Fold(std::array<double, kLanes>& lanes) {
  for (size_t half = kLanes / 2; half > 0; half /= 2) {
    for (size_t k = 0; k < half; ++k) lanes[k] += lanes[k + half];
  }
  return lanes[0];
}

// Sum over j of term(j), j < n, in lane j % kLanes.
template <size_t kLanes, typename Term>
double LaneSum(size_t n, const Term& term) {
  std::array<double, kLanes> lanes = {};
  for (size_t j = 0; j < n; ++j) lanes[j % kLanes] += term(j);
  return Fold(lanes);
}

template <typename FineTune, typename Base>
void DifferenceOf(const uint8_t* fine_tune, const uint8_t* base, std::span<float> out) {
  for (size_t j = 0; j < out.size(); ++j) {
    const float w = ToFloat(LoadUnaligned<FineTune>(fine_tune + j * sizeof(FineTune)));
    const float w0 = ToFloat(LoadUnaligned<Base>(base + j * sizeof(Base)));
    out[j] = (w - w0) + 0.0F;  // (-0) - (+0) = -0, whose sign counts as +
  }
}

template <typename FineTune>
void DifferenceFrom(const uint8_t* fine_tune, const uint8_t* base, DType base_dtype, std::span<float> out) {
  switch (base_dtype) {
    case DType::kBf16: return DifferenceOf<FineTune, Bf16>(fine_tune, base, out);
    case DType::kF16: return DifferenceOf<FineTune, F16>(fine_tune, base, out);
    case DType::kF32: return DifferenceOf<FineTune, float>(fine_tune, base, out);
    default: DF_CHECK(false);
  }
}

const uint8_t* RowStart(const TensorView& tensor, size_t row, size_t d_in) {
  return tensor.bytes.data() + row * d_in * DTypeBytes(tensor.dtype);
}

// values_j -= magnitude(j) with the sign that bit j says.
template <typename Magnitude>
void SubtractSigned(const uint8_t* bits, std::span<float> values, const Magnitude& magnitude) {
  for (size_t j = 0; j < values.size(); ++j) {
    const float signed_value = (bits[j / 8] >> (j % 8) & 1) != 0 ? magnitude(j) : -magnitude(j);
    values[j] = (values[j] - signed_value) + 0.0F;
  }
}

}  // namespace

void Difference(const WeightPair& pair, size_t row, std::span<float> out) {
  const uint8_t* fine_tune = RowStart(pair.fine_tune, row, out.size());
  const uint8_t* base = RowStart(pair.base, row, out.size());
  switch (pair.fine_tune.dtype) {
    case DType::kBf16: return DifferenceFrom<Bf16>(fine_tune, base, pair.base.dtype, out);
    case DType::kF16: return DifferenceFrom<F16>(fine_tune, base, pair.base.dtype, out);
    case DType::kF32: return DifferenceFrom<float>(fine_tune, base, pair.base.dtype, out);
    default: DF_CHECK(false);
  }
}

void PackSigns(std::span<const float> values, uint8_t* bits) {
  std::fill_n(bits, (values.size() + 7) / 8, uint8_t{0});
  for (size_t j = 0; j < values.size(); ++j) {
    if (values[j] >= 0) bits[j / 8] = static_cast<uint8_t>(bits[j / 8] | 1U << (j % 8));
  }
}

void SubtractSigns(const uint8_t* bits, float scale, std::span<float> values) {
  SubtractSigned(bits, values, [scale](size_t) { return scale; });
}

void SubtractSigns(const uint8_t* bits, float scale, std::span<const float> col_scale, std::span<float> values) {
  SubtractSigned(bits, values, [&](size_t j) { return scale * col_scale[j]; });
}

double AbsSum(std::span<const float> values) {
  return LaneSum<kSumLanes>(values.size(), [&](size_t j) { return std::fabs(double{values[j]}); });
}

Magnitudes MagnitudesOf(std::span<const float> values) {
  Magnitudes result;
  result.sum = AbsSum(values);
  result.squares = LaneSum<kSumLanes>(values.size(), [&](size_t j) { return double{values[j]} * double{values[j]}; });
  if (values.empty()) return result;
  result.smallest = std::fabs(values[0]);
  for (const float value : values) {
    result.smallest = std::min(result.smallest, std::fabs(value));
    result.largest = std::max(result.largest, std::fabs(value));
  }
  return result;
}

Magnitudes SignsOfDifference(const WeightPair& pair, size_t row, size_t d_in, uint8_t* bits) {
  std::vector<float> difference(d_in);
  Difference(pair, row, difference);
  PackSigns(difference, bits);
  return MagnitudesOf(difference);
}

double AbsDot(std::span<const float> values, std::span<const double> v) {
  return LaneSum<kSumLanes>(values.size(), [&](size_t j) { return std::fabs(double{values[j]}) * v[j]; });
}

void AbsAxpy(double u, std::span<const float> values, std::span<double> sum) {
  for (size_t j = 0; j < values.size(); ++j) sum[j] += u * std::fabs(double{values[j]});
}

double SumOfSquares(std::span<const double> values) {
  return LaneSum<kSumLanes>(values.size(), [&](size_t j) { return values[j] * values[j]; });
}

ErrorSums SumErrors(std::span<const float> d, std::span<const float> r) {
  const auto product = [](float a, float b) { return double{a} * double{b}; };
  ErrorSums sums;
  sums.difference = LaneSum<kErrorLanes>(d.size(), [&](size_t j) { return product(d[j], d[j]); });
  sums.cross = LaneSum<kErrorLanes>(d.size(), [&](size_t j) { return product(d[j], r[j]); });
  sums.error = LaneSum<kErrorLanes>(r.size(), [&](size_t j) { return product(r[j], r[j]); });
  for (const float value : r) sums.max_abs_error = std::max(sums.max_abs_error, std::fabs(double{value}));
  return sums;
}

void ReadRow(const TensorView& tensor, size_t row, std::span<float> out) { ReadFloats(tensor, row * out.size(), out); }

bool Narrow(std::span<const float> from, DType dtype, uint8_t* to) {
  if (dtype == DType::kF32) {
    if (!from.empty()) std::memcpy(to, from.data(), from.size_bytes());
    return true;
  }
  const bool is_bf16 = dtype == DType::kBf16;
  DF_CHECK(is_bf16 || dtype == DType::kF16);
  bool fits = true;
  for (size_t j = 0; j < from.size(); ++j) {
    const uint16_t bits = is_bf16 ? ToBf16(from[j]).bits : ToF16(from[j]).bits;
    const uint16_t infinity = is_bf16 ? 0x7F80 : 0x7C00;
    fits = fits && ((bits & 0x7FFF) != infinity || std::isinf(from[j]));
    std::memcpy(to + j * sizeof(bits), &bits, sizeof(bits));
  }
  return fits;
}

}  // namespace df::row_ops::ref
