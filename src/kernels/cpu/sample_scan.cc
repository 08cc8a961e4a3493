#include "kernels/cpu/sample_scan.h"

#include <algorithm>
#include <limits>
#include <numeric>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/sample_scan.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "hwy/highway.h"
#include "kernels/cpu/exp-inl.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace df::kernels::cpu::HWY_NAMESPACE {

constexpr float kLowest = -std::numeric_limits<float>::infinity();

// Block `block` of the logits; a partial last one is copied to `padding` [64] and filled with -inf.
HWY_INLINE const float* WholeBlock(std::span<const float> logits, size_t block, float* padding) {
  const size_t begin = block * kVocabBlock;
  if (begin + kVocabBlock <= logits.size()) return logits.data() + begin;
  const size_t n = logits.size() - begin;
  std::copy_n(logits.data() + begin, n, padding);
  std::fill_n(padding + n, kVocabBlock - n, kLowest);
  return padding;
}

HWY_INLINE FloatVec Weight(FloatVec x, FloatVec largest, FloatVec temperature) {
  const FloatTag d;
  const FloatVec exponent = hn::Div(hn::Sub(x, largest), temperature);
  return hn::IfThenElseZero(hn::Ge(exponent, hn::Set(d, kExpLowest)), ExpWeight(d, exponent));
}

RowScan ScanRowImpl(std::span<const float> logits, float* HWY_RESTRICT block_largest) {
  const FloatTag d;
  const auto infinity = hn::Set(d, -kLowest);
  const auto lowest = hn::Set(d, kLowest);
  alignas(64) float padding[kVocabBlock];
  auto finite_or_low = hn::Eq(infinity, infinity);  // x < inf is false for +inf and NaN
  float largest = kLowest;
  for (size_t block = 0; block < VocabBlocks(logits.size()); ++block) {
    const float* x = WholeBlock(logits, block, padding);
    auto top = lowest;
    for (size_t i = 0; i < kVocabBlock; i += kLanes) {
      const auto v = hn::LoadU(d, x + i);
      finite_or_low = hn::And(finite_or_low, hn::Lt(v, infinity));
      top = hn::Max(top, v);
    }
    block_largest[block] = hn::GetLane(hn::MaxOfLanes(d, top));
    largest = std::max(largest, block_largest[block]);
  }
  return {.largest = largest, .servable = hn::AllTrue(d, finite_or_low) && largest != kLowest};
}

float SmallestImpl(std::span<const float> logits) {
  const FloatTag d;
  const auto infinity = hn::Set(d, -kLowest);
  const auto lowest = hn::Set(d, kLowest);
  alignas(64) float padding[kVocabBlock];
  auto bottom = infinity;
  for (size_t block = 0; block < VocabBlocks(logits.size()); ++block) {
    const float* x = WholeBlock(logits, block, padding);
    for (size_t i = 0; i < kVocabBlock; i += kLanes) {
      const auto v = hn::LoadU(d, x + i);
      bottom = hn::Min(bottom, hn::IfThenElse(hn::Eq(v, lowest), infinity, v));
    }
  }
  return hn::GetLane(hn::MinOfLanes(d, bottom));
}

void WeighLogitsImpl(std::span<const float> logits, float largest, float temperature, float* weights) {
  const FloatTag d;
  alignas(64) float padding[kVocabBlock];
  alignas(64) float buffer[kVocabBlock];
  for (size_t block = 0; block < VocabBlocks(logits.size()); ++block) {
    const float* x = WholeBlock(logits, block, padding);
    for (size_t i = 0; i < kVocabBlock; i += kLanes) {
      hn::Store(Weight(hn::LoadU(d, x + i), hn::Set(d, largest), hn::Set(d, temperature)), d, buffer + i);
    }
    const size_t begin = block * kVocabBlock;
    std::copy_n(buffer, std::min(kVocabBlock, logits.size() - begin), weights + begin);
  }
}

double WeighBlocksImpl(std::span<const float> logits, float largest, float temperature, float* HWY_RESTRICT weights,
                       double* HWY_RESTRICT block_mass) {
  const FloatTag d;
  alignas(64) float padding[kVocabBlock];
  double mass = 0;
  for (size_t block = 0; block < VocabBlocks(logits.size()); ++block) {
    const float* x = WholeBlock(logits, block, padding);
    auto sum = hn::Zero(d);
    for (size_t i = 0; i < kVocabBlock; i += kLanes) {
      const FloatVec weight = Weight(hn::LoadU(d, x + i), hn::Set(d, largest), hn::Set(d, temperature));
      hn::StoreU(weight, d, weights + block * kVocabBlock + i);
      sum = hn::Add(sum, weight);
    }
    block_mass[block] = double{hn::GetLane(hn::SumOfLanes(d, sum))};
    mass += block_mass[block];
  }
  return mass;
}

// sums[0..kLanes) += x, in f64.
HWY_INLINE void AddWide(FloatVec x, double* HWY_RESTRICT sums) {
  const hn::Half<FloatTag> dh;
  const hn::Rebind<double, decltype(dh)> dw;
  const auto low = hn::PromoteTo(dw, hn::LowerHalf(dh, x));
  const auto high = hn::PromoteTo(dw, hn::UpperHalf(dh, x));
  hn::StoreU(hn::Add(hn::LoadU(dw, sums), low), dw, sums);
  hn::StoreU(hn::Add(hn::LoadU(dw, sums + kLanes / 2), high), dw, sums + kLanes / 2);
}

Masses MassesFromImpl(const WeighedRow& row, const Thresholds& thresholds) {
  const FloatTag d;
  alignas(64) float padding[kVocabBlock];
  alignas(64) double sums[kThresholds][kLanes] = {};
  for (size_t block = 0; block < VocabBlocks(row.logits.size()); ++block) {
    if (!(row.block_largest[block] >= thresholds[0])) continue;
    const float* x = WholeBlock(row.logits, block, padding);
    const float* weights = row.weights + block * kVocabBlock;
    FloatVec sum[kThresholds];
    DF_UNROLL
    for (size_t j = 0; j < kThresholds; ++j) sum[j] = hn::Zero(d);
    for (size_t i = 0; i < kVocabBlock; i += kLanes) {
      const auto v = hn::LoadU(d, x + i);
      const auto weight = hn::LoadU(d, weights + i);
      DF_UNROLL
      for (size_t j = 0; j < kThresholds; ++j) {
        sum[j] = hn::Add(sum[j], hn::IfThenElseZero(hn::Ge(v, hn::Set(d, thresholds[j])), weight));
      }
    }
    DF_UNROLL
    for (size_t j = 0; j < kThresholds; ++j) AddWide(sum[j], sums[j]);
  }
  Masses masses = {};
  for (size_t j = 0; j < kThresholds; ++j) masses[j] = std::accumulate(sums[j], sums[j] + kLanes, 0.0);
  return masses;
}

double KeepFromImpl(const WeighedRow& row, float threshold, double* HWY_RESTRICT block_mass) {
  const FloatTag d;
  alignas(64) float padding[kVocabBlock];
  double mass = 0;
  for (size_t block = 0; block < VocabBlocks(row.logits.size()); ++block) {
    block_mass[block] = 0;
    if (!(row.block_largest[block] >= threshold)) continue;
    const float* x = WholeBlock(row.logits, block, padding);
    float* HWY_RESTRICT weights = row.weights + block * kVocabBlock;
    auto sum = hn::Zero(d);
    for (size_t i = 0; i < kVocabBlock; i += kLanes) {
      const auto reaches = hn::Ge(hn::LoadU(d, x + i), hn::Set(d, threshold));
      const auto kept = hn::IfThenElseZero(reaches, hn::LoadU(d, weights + i));
      hn::StoreU(kept, d, weights + i);
      sum = hn::Add(sum, kept);
    }
    block_mass[block] = double{hn::GetLane(hn::SumOfLanes(d, sum))};
    mass += block_mass[block];
  }
  return mass;
}

size_t FindBetweenImpl(std::span<const float> logits, const float* block_largest, float low, float high,
                       int32_t* HWY_RESTRICT tokens) {
  const FloatTag d;
  alignas(64) float padding[kVocabBlock];
  size_t n = 0;
  for (size_t block = 0; block < VocabBlocks(logits.size()); ++block) {
    if (!(block_largest[block] >= low)) continue;
    const float* x = WholeBlock(logits, block, padding);
    for (size_t i = 0; i < kVocabBlock; i += kLanes) {
      const auto v = hn::LoadU(d, x + i);
      const auto inside = hn::And(hn::Ge(v, hn::Set(d, low)), hn::Lt(v, hn::Set(d, high)));
      if (hn::AllFalse(d, inside)) continue;
      // Padding is -inf, which may be in the range.
      for (size_t lane = i; lane < std::min(i + kLanes, logits.size() - block * kVocabBlock); ++lane) {
        if (x[lane] >= low && x[lane] < high) tokens[n++] = static_cast<int32_t>(block * kVocabBlock + lane);
      }
    }
  }
  return n;
}

void ShiftLogitsImpl(std::span<const float> logits, float largest, float log_mass, float* HWY_RESTRICT out) {
  const FloatTag d;
  size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes) {
    const auto x = hn::LoadU(d, logits.data() + i);
    hn::StoreU(hn::Sub(hn::Sub(x, hn::Set(d, largest)), hn::Set(d, log_mass)), d, out + i);
  }
  for (; i < logits.size(); ++i) out[i] = (logits[i] - largest) - log_mass;
}

}  // namespace df::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace df::kernels::cpu {

HWY_EXPORT(ScanRowImpl);
HWY_EXPORT(SmallestImpl);
HWY_EXPORT(WeighLogitsImpl);
HWY_EXPORT(WeighBlocksImpl);
HWY_EXPORT(MassesFromImpl);
HWY_EXPORT(KeepFromImpl);
HWY_EXPORT(FindBetweenImpl);
HWY_EXPORT(ShiftLogitsImpl);

RowScan ScanRow(std::span<const float> logits, float* block_largest) {
  return HWY_DYNAMIC_DISPATCH(ScanRowImpl)(logits, block_largest);
}

float Smallest(std::span<const float> logits) { return HWY_DYNAMIC_DISPATCH(SmallestImpl)(logits); }

void WeighLogits(std::span<const float> logits, float largest, float temperature, float* weights) {
  HWY_DYNAMIC_DISPATCH(WeighLogitsImpl)(logits, largest, temperature, weights);
}

double WeighBlocks(std::span<const float> logits, float largest, float temperature, float* weights,
                   double* block_mass) {
  return HWY_DYNAMIC_DISPATCH(WeighBlocksImpl)(logits, largest, temperature, weights, block_mass);
}

Masses MassesFrom(const WeighedRow& row, const Thresholds& thresholds) {
  return HWY_DYNAMIC_DISPATCH(MassesFromImpl)(row, thresholds);
}

double KeepFrom(const WeighedRow& row, float threshold, double* block_mass) {
  return HWY_DYNAMIC_DISPATCH(KeepFromImpl)(row, threshold, block_mass);
}

size_t FindBetween(std::span<const float> logits, const float* block_largest, float low, float high, int32_t* tokens) {
  return HWY_DYNAMIC_DISPATCH(FindBetweenImpl)(logits, block_largest, low, high, tokens);
}

void ShiftLogits(std::span<const float> logits, float largest, float log_mass, float* out) {
  HWY_DYNAMIC_DISPATCH(ShiftLogitsImpl)(logits, largest, log_mass, out);
}

}  // namespace df::kernels::cpu
#endif  // HWY_ONCE
