#include "kernels/cpu/limits.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/limits.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace df::kernels::cpu::HWY_NAMESPACE {

// 4 cycles of latency x 2 a cycle want 8 chains; 12 leave slack.
inline constexpr size_t kChains = 12;

uint64_t ReadImpl(const uint8_t* memory, size_t n_bytes) {
  const hn::ScalableTag<uint64_t> d;
  constexpr size_t kStep = 4 * HWY_LANES(uint64_t);
  const auto* from = reinterpret_cast<const uint64_t*>(memory);
  auto a = hn::Zero(d), b = a, c = a, e = a;
  for (size_t i = 0; i + kStep <= n_bytes / sizeof(uint64_t); i += kStep) {
    a = hn::Xor(a, hn::Load(d, from + i));
    b = hn::Xor(b, hn::Load(d, from + i + kStep / 4));
    c = hn::Xor(c, hn::Load(d, from + i + kStep / 2));
    e = hn::Xor(e, hn::Load(d, from + i + 3 * kStep / 4));
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Xor(hn::Xor(a, b), hn::Xor(c, e))));
}

double MultiplyAddImpl(size_t n_steps, float* digest) {
  const FloatTag d;
  const FloatVec factor = hn::Set(d, digest[0]);
  FloatVec acc[kChains];
  DF_UNROLL
  for (size_t i = 0; i < kChains; ++i) acc[i] = hn::Iota(d, static_cast<float>(i));
  for (size_t step = 0; step < n_steps; ++step) {
    DF_UNROLL
    for (size_t i = 0; i < kChains; ++i) acc[i] = hn::MulAdd(acc[i], factor, factor);
  }
  FloatVec sum = acc[0];
  DF_UNROLL
  for (size_t i = 1; i < kChains; ++i) sum = hn::Add(sum, acc[i]);
  digest[1] = hn::GetLane(hn::SumOfLanes(d, sum));
  return 2.0 * static_cast<double>(n_steps * kChains * kLanes);
}

double ShuffleImpl(size_t n_steps, uint8_t* digest) {
  const hn::ScalableTag<uint8_t> d;
  using Vec = hn::Vec<decltype(d)>;
  const Vec table = hn::And(hn::Iota(d, digest[0]), hn::Set(d, uint8_t{15}));
  Vec index[kChains];
  DF_UNROLL
  for (size_t i = 0; i < kChains; ++i)
    index[i] = hn::And(hn::Iota(d, static_cast<uint8_t>(i)), hn::Set(d, uint8_t{15}));
  for (size_t step = 0; step < n_steps; ++step) {
    DF_UNROLL
    for (size_t i = 0; i < kChains; ++i) index[i] = hn::TableLookupBytes(table, index[i]);
  }
  Vec sum = index[0];
  DF_UNROLL
  for (size_t i = 1; i < kChains; ++i) sum = hn::Xor(sum, index[i]);
  digest[1] = hn::GetLane(sum);
  return static_cast<double>(n_steps * kChains * HWY_LANES(uint8_t));
}

}  // namespace df::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace df::kernels::cpu {

HWY_EXPORT(ReadImpl);
HWY_EXPORT(MultiplyAddImpl);
HWY_EXPORT(ShuffleImpl);

uint64_t ReadMemory(Bytes memory) { return HWY_DYNAMIC_DISPATCH(ReadImpl)(memory.data(), memory.size()); }

double MultiplyAdd(size_t n_steps) {
  float digest[2] = {0.5F, 0.0F};
  const double flops = HWY_DYNAMIC_DISPATCH(MultiplyAddImpl)(n_steps, digest);
  return digest[1] > 0 ? flops : 0;  // the digest is positive; looking at it keeps the loop
}

double ShuffleBytes(size_t n_steps) {
  uint8_t digest[2] = {1, 0xFF};
  const double bytes = HWY_DYNAMIC_DISPATCH(ShuffleImpl)(n_steps, digest);
  return digest[1] < 16 ? bytes : 0;  // table entries have four bits; looking at the digest keeps the loop
}

}  // namespace df::kernels::cpu
#endif  // HWY_ONCE
