#include "kernels/cpu/machine_limits.h"

#include <time.h>

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/machine_limits.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace df::kernels::cpu::HWY_NAMESPACE {

// Reads n words, n a multiple of 64; the sum keeps the loads alive.
uint32_t ReadWords(const uint32_t* HWY_RESTRICT from, size_t n) {
  const UintTag d;
  auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
  for (size_t i = 0; i < n; i += 4 * kLanes) {
    // 4 KB ahead: a page, beyond which the hardware's own prefetch starts anew.
    for (size_t line = 0; line < 4 * kLanes; line += 16) hwy::Prefetch(from + i + 1024 + line);
    s0 = hn::Add(s0, hn::Load(d, from + i));
    s1 = hn::Add(s1, hn::Load(d, from + i + kLanes));
    s2 = hn::Add(s2, hn::Load(d, from + i + 2 * kLanes));
    s3 = hn::Add(s3, hn::Load(d, from + i + 3 * kLanes));
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3))));
}

// 12 chains: two units times a latency of 4 need 8, and 16 registers hold no more beside the operands.
constexpr size_t kChains = 12;

// Returns the multiply-adds done, and their result through `sink`.
double MultiplyAdd(size_t rounds, float* sink) {
  const FloatTag d;
  const FloatVec x = hn::Set(d, *sink);
  FloatVec sum[kChains];
  DF_UNROLL
  for (size_t i = 0; i < kChains; ++i) sum[i] = hn::Set(d, static_cast<float>(i));
  for (size_t round = 0; round < rounds; ++round) {
    DF_UNROLL
    for (size_t i = 0; i < kChains; ++i) sum[i] = hn::MulAdd(sum[i], x, x);
  }
  DF_UNROLL
  for (size_t i = 1; i < kChains; ++i) sum[0] = hn::Add(sum[0], sum[i]);
  *sink = hn::GetLane(sum[0]);
  return static_cast<double>(rounds * kChains * kLanes);
}

}  // namespace df::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace df::kernels::cpu {
namespace {

HWY_EXPORT(ReadWords);
HWY_EXPORT(MultiplyAdd);

// Of the calling thread: what other processes take of the machine's cores does not count.
double CpuSeconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

constexpr int kRounds = 5;

// Runs body(begin, end, thread) on all threads over [0, n), which returns the work it did; the best round's sum of the
// threads' work per CPU second.
template <typename Body>
double BestRate(KernelContext& context, size_t n, size_t grain, const Body& body) {
  Buffer<double> rates(context.pool.n_threads() * 8);  // a cache line each
  double best = 0;
  for (int round = 0; round < kRounds; ++round) {
    context.pool.ParallelFor(n, grain, [&](size_t begin, size_t end, size_t thread) {
      const double start = CpuSeconds();
      const double work = body(begin, end);
      rates[thread * 8] = work / (CpuSeconds() - start);
    });
    double sum = 0;
    for (const double rate : rates.span()) sum += rate;
    best = std::max(best, sum);
  }
  return best;
}

double ReadBytesPerSecond(KernelContext& context) {
  constexpr size_t kWords = size_t{512} << 18;  // 512 MB
  Buffer<uint32_t> memory(kWords);
  std::fill_n(memory.data(), kWords, 1u);
  return BestRate(context, kWords, 1024, [&](size_t begin, size_t end) {
    const volatile uint32_t sum = HWY_DYNAMIC_DISPATCH(ReadWords)(memory.data() + begin, end - begin);
    (void)sum;
    return static_cast<double>((end - begin) * sizeof(uint32_t));
  });
}

double FlopsPerSecond(KernelContext& context) {
  return BestRate(context, context.pool.n_threads(), 1, [](size_t begin, size_t end) {
    float sink = 0.5F;
    const double done = 2 * HWY_DYNAMIC_DISPATCH(MultiplyAdd)((end - begin) * 2'000'000, &sink);
    const volatile float result = sink;
    (void)result;
    return done;
  });
}

}  // namespace

MachineLimits MeasureMachineLimits(KernelContext& context) {
  return {.read_bytes_per_second = ReadBytesPerSecond(context), .flops_per_second = FlopsPerSecond(context)};
}

}  // namespace df::kernels::cpu
#endif  // HWY_ONCE
