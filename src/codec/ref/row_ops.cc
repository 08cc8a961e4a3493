#include "codec/ref/row_ops.h"

#include <algorithm>
#include <array>
#include <bit>
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

// By magnitude, NaN above infinity.
bool IsSmaller(float a, float b) {
  constexpr uint32_t kMagnitudeBits = 0x7FFFFFFF;
  return (std::bit_cast<uint32_t>(a) & kMagnitudeBits) < (std::bit_cast<uint32_t>(b) & kMagnitudeBits);
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

namespace {

float LargestMagnitude(std::span<const float> values) {
  float largest = 0;
  for (const float value : values) largest = std::max(largest, std::fabs(value), IsSmaller);
  return largest;
}

Magnitudes WideMagnitudes(std::span<const float> values) {
  const double squares =
      LaneSum<kSumLanes>(values.size(), [&](size_t j) { return double{values[j]} * double{values[j]}; });
  return {.n = values.size(), .above = AbsSum(values), .above_squares = squares};
}

Magnitudes NarrowMagnitudes(std::span<const float> values, float pivot) {
  std::array<double, kMagnitudeLanes> above = {}, squares = {};
  for (size_t begin = 0; begin < values.size(); begin += kMagnitudeBlock) {
    std::array<float, kMagnitudeLanes> block_above = {}, block_squares = {};
    for (size_t j = begin; j < std::min(values.size(), begin + kMagnitudeBlock); ++j) {
      const size_t lane = j % 2 * (kMagnitudeLanes / 2) + j % kMagnitudeLanes / 2;
      const float over = std::fabs(values[j]) - pivot;
      block_above[lane] += over;
      block_squares[lane] += over * over;
    }
    for (size_t k = 0; k < kMagnitudeLanes; ++k) {
      above[k] += double{block_above[k]};
      squares[k] += double{block_squares[k]};
    }
  }
  return {.n = values.size(), .pivot = double{pivot}, .above = Fold(above), .above_squares = Fold(squares)};
}

}  // namespace

Magnitudes MagnitudesOf(std::span<const float> values) {
  if (values.empty()) return {};
  const auto first = values.first(std::min(values.size(), kMagnitudeLanes));
  const float largest = LargestMagnitude(values);
  Magnitudes result = NarrowMagnitudes(values, std::fabs(*std::ranges::min_element(first, IsSmaller)));
  if (!IsNarrow(largest, result.above)) result = WideMagnitudes(values);
  result.smallest = std::fabs(*std::ranges::min_element(values, IsSmaller));
  result.largest = largest;
  return result;
}

Magnitudes SignsOfDifference(const WeightPair& pair, size_t row, size_t d_in, uint8_t* bits) {
  std::vector<float> difference(d_in);
  Difference(pair, row, difference);
  PackSigns(difference, bits);
  return MagnitudesOf(difference);
}

float LargestDifference(const WeightPair& pair, size_t row, size_t d_in) {
  std::vector<float> difference(d_in);
  Difference(pair, row, difference);
  return LargestMagnitude(difference);
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
