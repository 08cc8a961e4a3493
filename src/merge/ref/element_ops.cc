#include "merge/ref/element_ops.h"

#include <array>
#include <bit>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "base/float16.h"
#include "codec/row_ops.h"

namespace df::merge::element_ops::ref {
namespace {

using row_ops::kSumLanes;

double Fold(std::array<double, kSumLanes>& lanes) {
  for (size_t half = kSumLanes / 2; half > 0; half /= 2) {
    for (size_t k = 0; k < half; ++k) lanes[k] += lanes[k + half];
  }
  return lanes[0];
}

// out_j = f32(base + change of the runs' element), and the squares of what it changed.
template <typename Change>
double WriteChanged(const Runs& runs, std::span<float> out, const Change& change) {
  std::array<double, kSumLanes> lanes = {};
  for (size_t j = 0; j < out.size(); ++j) {
    const double from = runs.base == nullptr ? 0.0 : double{runs.base[runs.first + j]};
    out[j] = static_cast<float>(from + change(runs.first + j));
    const double difference = double{out[j]} - from;
    lanes[j % kSumLanes] += difference * difference;
  }
  return Fold(lanes);
}

float FloatAt(DType dtype, const uint8_t* from, size_t j) {
  switch (dtype) {
    case DType::kBf16: return ToFloat(LoadUnaligned<Bf16>(from + j * sizeof(Bf16)));
    case DType::kF16: return ToFloat(LoadUnaligned<F16>(from + j * sizeof(F16)));
    case DType::kF32: return LoadUnaligned<float>(from + j * sizeof(float));
    default: DF_CHECK(false);
  }
}

double Total(const Runs& runs, std::span<const double> coefficients, size_t j) {
  double sum = 0;
  for (size_t i = 0; i < coefficients.size(); ++i) sum += coefficients[i] * double{runs.differences[i][j]};
  return sum;
}

double Agreeing(const Runs& runs, const Consensus& consensus, size_t j) {
  const bool is_plus = Total(runs, consensus.coefficients, j) >= 0;
  double sum = 0, divisor = 0;
  for (size_t i = 0; i < consensus.coefficients.size(); ++i) {
    const double x = consensus.coefficients[i] * double{runs.differences[i][j]};
    if (!(is_plus ? x > 0 : x < 0)) continue;
    sum += x;
    if (!consensus.divisors.empty()) divisor += consensus.divisors[i];
  }
  return consensus.lambda * (divisor == 0 ? sum : sum / divisor);
}

}  // namespace

double Squares(std::span<const float> values) {
  std::array<double, kSumLanes> lanes = {};
  for (size_t j = 0; j < values.size(); ++j) lanes[j % kSumLanes] += double{values[j]} * double{values[j]};
  return Fold(lanes);
}

void KeepAtLeast(uint32_t least, std::span<float> values) {
  for (float& value : values) {
    if ((std::bit_cast<uint32_t>(value) & 0x7FFFFFFFu) < least) value = 0;
  }
}

void Drop(uint64_t key, uint64_t first, uint32_t below, std::span<float> values) {
  for (size_t j = 0; j < values.size(); ++j) {
    if (Draw(key, static_cast<uint32_t>(first + j)) >= below) values[j] = 0;
  }
}

double WeightedSum(const Runs& runs, std::span<const double> coefficients, std::span<float> out) {
  return WriteChanged(runs, out, [&](size_t j) { return Total(runs, coefficients, j); });
}

double StoredSum(const StoredRuns& runs, std::span<const double> coefficients, std::span<double> squares,
                 std::span<float> out) {
  const auto widened = [&](const uint8_t* from) {
    std::vector<float> values(out.size());
    for (size_t j = 0; j < values.size(); ++j) values[j] = FloatAt(runs.dtype, from, j);
    return values;
  };
  std::vector<float> base;
  if (runs.base != nullptr) base = widened(runs.base);
  std::vector<std::vector<float>> differences;
  std::vector<const float*> pointers;
  for (size_t i = 0; i < runs.models.size(); ++i) {
    std::vector<float>& difference = differences.emplace_back(widened(runs.models[i]));
    for (size_t j = 0; j < base.size(); ++j) difference[j] -= base[j];
    squares[i] += Squares(difference);
    pointers.push_back(difference.data());
  }
  return WeightedSum({pointers, runs.base == nullptr ? nullptr : base.data()}, coefficients, out);
}

double AgreeingSum(const Runs& runs, const Consensus& consensus, std::span<float> out) {
  return WriteChanged(runs, out, [&](size_t j) { return Agreeing(runs, consensus, j); });
}

}  // namespace df::merge::element_ops::ref
