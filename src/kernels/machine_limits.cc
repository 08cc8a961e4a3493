#include "kernels/machine_limits.h"

#include <time.h>

#include <algorithm>

#include "base/check.h"
#include "kernels/limits.h"
#include "kernels/target.h"

namespace df::kernels {
namespace {

double CpuSeconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// The most work a second that any round of `body` did, which returns its work.
template <typename Body>
double BestRate(const Body& body) {
  constexpr int kRounds = 8;
  double best = 0;
  for (int round = 0; round < kRounds; ++round) {
    const double start = CpuSeconds();
    const double work = body();
    best = std::max(best, work / (CpuSeconds() - start));
  }
  return best;
}

double ReadBytesPerSecond(KernelContext& context) {
  constexpr size_t kBytes = size_t{512} << 20;
  Buffer<uint8_t> memory(kBytes);
  std::fill_n(memory.data(), kBytes, uint8_t{1});
  return BestRate([&] {
    const volatile uint64_t digest = ReadMemory(context, memory.span());
    (void)digest;
    return static_cast<double>(kBytes);
  });
}

}  // namespace

MachineLimits MeasureMachineLimits(KernelContext& context) {
  DF_CHECK(!IsScalarTarget());
  constexpr size_t kSteps = 1'000'000;
  return {.read_bytes_per_second = ReadBytesPerSecond(context),
          .flops_per_second = BestRate([&] { return MultiplyAdd(context, kSteps); })};
}

}  // namespace df::kernels
