#include "codec/row_ops.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "base/check.h"
#include "base/float16.h"

namespace df::row_ops {
namespace {

// Eight f64 lanes: four registers of SSE2, two of AVX2, one of AVX-512, and enough chains to hide the adder's latency.
constexpr size_t kLanes = 8;
using Lanes = std::array<double, kLanes>;

double Fold(const Lanes& lanes) {
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

// Sum over j of term(j), j < n, lane j % 8.
template <typename Term>
double LaneSum(size_t n, const Term& term) {
  Lanes lanes = {};
  size_t j = 0;
  for (; j + kLanes <= n; j += kLanes) {
    for (size_t k = 0; k < kLanes; ++k) lanes[k] += term(j + k);
  }
  for (size_t k = 0; j + k < n; ++k) lanes[k] += term(j + k);
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

constexpr uint32_t kSignBit = 0x80000000U;

// magnitude(j) with the sign that bit j says; whole bytes first so that the inner loop has constant masks.
template <typename Magnitude>
void SubtractSigned(const uint8_t* bits, std::span<float> values, const Magnitude& magnitude) {
  const auto subtract = [&](size_t j, uint32_t is_plus) {
    const uint32_t flip = is_plus != 0 ? 0U : kSignBit;
    const float signed_value = std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude(j)) ^ flip);
    values[j] = (values[j] - signed_value) + 0.0F;
  };
  const size_t n_whole = values.size() / 8;
  for (size_t b = 0; b < n_whole; ++b) {
    const uint32_t byte = bits[b];
    for (size_t k = 0; k < 8; ++k) subtract(8 * b + k, byte & (1U << k));
  }
  for (size_t j = 8 * n_whole; j < values.size(); ++j) subtract(j, bits[j / 8] & (1U << (j % 8)));
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
  constexpr size_t kBlock = 512;  // columns whose signs are first narrowed to bytes, a loop that becomes vector packs
  std::array<uint8_t, kBlock> plus;
  for (size_t first = 0; first < values.size(); first += kBlock) {
    const size_t n = std::min(kBlock, values.size() - first);
    for (size_t j = 0; j < n; ++j) {
      plus[j] = static_cast<uint8_t>((std::bit_cast<uint32_t>(values[first + j]) >> 31) ^ 1U);
    }
    std::fill(plus.begin() + static_cast<std::ptrdiff_t>(n), plus.end(), uint8_t{0});
    for (size_t b = 0; b < (n + 7) / 8; ++b) {
      // Byte k of the little-endian word holds bit k; the factor moves it to bit 56 + k, and no two products overlap.
      const auto bytes = LoadUnaligned<uint64_t>(plus.data() + 8 * b);
      bits[first / 8 + b] = static_cast<uint8_t>((bytes * 0x0102040810204080U) >> 56);
    }
  }
}

void SubtractSigns(const uint8_t* bits, float scale, std::span<float> values) {
  SubtractSigned(bits, values, [scale](size_t) { return scale; });
}

void SubtractSigns(const uint8_t* bits, float scale, std::span<const float> col_scale, std::span<float> values) {
  SubtractSigned(bits, values, [&](size_t j) { return scale * col_scale[j]; });
}

double AbsSum(std::span<const float> values) {
  return LaneSum(values.size(), [&](size_t j) { return static_cast<double>(std::fabs(values[j])); });
}

double AbsDot(std::span<const float> values, std::span<const double> v) {
  return LaneSum(values.size(), [&](size_t j) { return static_cast<double>(std::fabs(values[j])) * v[j]; });
}

void AbsAxpy(double u, std::span<const float> values, std::span<double> sum) {
  for (size_t j = 0; j < values.size(); ++j) sum[j] += u * static_cast<double>(std::fabs(values[j]));
}

double SumOfSquares(std::span<const double> values) {
  return LaneSum(values.size(), [&](size_t j) { return values[j] * values[j]; });
}

ErrorSums SumErrors(std::span<const float> d, std::span<const float> r) {
  const auto product = [](float a, float b) { return static_cast<double>(a) * static_cast<double>(b); };
  ErrorSums sums;
  sums.difference = LaneSum(d.size(), [&](size_t j) { return product(d[j], d[j]); });
  sums.cross = LaneSum(d.size(), [&](size_t j) { return product(d[j], r[j]); });
  sums.error = LaneSum(r.size(), [&](size_t j) { return product(r[j], r[j]); });
  // Of floats without sign the order is that of their bits, and a maximum of integers becomes vectors: one of floats
  // does not, for NaN's sake.
  int32_t max_bits = 0;
  for (const float value : r) max_bits = std::max(max_bits, std::bit_cast<int32_t>(value) & INT32_MAX);
  sums.max_abs_error = static_cast<double>(std::bit_cast<float>(max_bits));
  return sums;
}

}  // namespace df::row_ops
