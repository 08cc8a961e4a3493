#include "tools/read_gauge.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/clock.h"
#include "kernels/limits.h"
#include "tools/machine.h"
#include "tools/statistics.h"

namespace df::tools {
namespace {

constexpr size_t kMinBytes = size_t{256} << 20;
constexpr size_t kPasses = 5;

}  // namespace

ReadGauge::ReadGauge(size_t n_threads)
    : context_(n_threads), memory_(std::max(kMinBytes, LastLevelCacheBytes() * 5 / 4 / 4096 * 4096)) {
  context_.pool.ParallelFor(memory_.size(), 4096, [&](size_t begin, size_t end, size_t) {
    std::memset(memory_.data() + begin, 1, end - begin);
  });
}

double ReadGauge::SecondsPerByte() {
  const SteadyClock clock;
  std::array<double, kPasses> microseconds = {};
  for (double& pass : microseconds) {
    const int64_t start_us = clock.NowUs();
    const volatile uint64_t digest = kernels::ReadMemory(context_, memory_.span());
    (void)digest;
    pass = static_cast<double>(std::max<int64_t>(clock.NowUs() - start_us, 1));
  }
  return Median(microseconds) * 1e-6 / static_cast<double>(memory_.size());
}

}  // namespace df::tools
