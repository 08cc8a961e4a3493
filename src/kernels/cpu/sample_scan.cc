#include "kernels/cpu/sample_scan.h"

#include <algorithm>
#include <limits>

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
  return Exp(FloatTag(), hn::Div(hn::Sub(x, largest), temperature));
}

RowScan ScanRowImpl(std::span<const float> logits, float* HWY_RESTRICT block_largest) {
  const FloatTag d;
  const auto infinity = hn::Set(d, -kLowest);
  alignas(64) float padding[kVocabBlock];
  auto finite_or_low = hn::Eq(infinity, infinity);  // x < inf is false for +inf and NaN
  float largest = kLowest;
  for (size_t block = 0; block < VocabBlocks(logits.size()); ++block) {
    const float* x = WholeBlock(logits, block, padding);
    auto top = hn::Set(d, kLowest);
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

double WeighBlocksImpl(std::span<const float> logits, float largest, float temperature,
                       double* HWY_RESTRICT block_mass) {
  const FloatTag d;
  alignas(64) float padding[kVocabBlock];
  double mass = 0;
  for (size_t block = 0; block < VocabBlocks(logits.size()); ++block) {
    const float* x = WholeBlock(logits, block, padding);
    auto sum = hn::Zero(d);
    for (size_t i = 0; i < kVocabBlock; i += kLanes) {
      sum = hn::Add(sum, Weight(hn::LoadU(d, x + i), hn::Set(d, largest), hn::Set(d, temperature)));
    }
    block_mass[block] = double{hn::GetLane(hn::SumOfLanes(d, sum))};
    mass += block_mass[block];
  }
  return mass;
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
HWY_EXPORT(WeighLogitsImpl);
HWY_EXPORT(WeighBlocksImpl);
HWY_EXPORT(ShiftLogitsImpl);

RowScan ScanRow(std::span<const float> logits, float* block_largest) {
  return HWY_DYNAMIC_DISPATCH(ScanRowImpl)(logits, block_largest);
}

void WeighLogits(std::span<const float> logits, float largest, float temperature, float* weights) {
  HWY_DYNAMIC_DISPATCH(WeighLogitsImpl)(logits, largest, temperature, weights);
}

double WeighBlocks(std::span<const float> logits, float largest, float temperature, double* block_mass) {
  return HWY_DYNAMIC_DISPATCH(WeighBlocksImpl)(logits, largest, temperature, block_mass);
}

void ShiftLogits(std::span<const float> logits, float largest, float log_mass, float* out) {
  HWY_DYNAMIC_DISPATCH(ShiftLogitsImpl)(logits, largest, log_mass, out);
}

}  // namespace df::kernels::cpu
#endif  // HWY_ONCE
