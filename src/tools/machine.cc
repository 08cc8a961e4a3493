#include "tools/machine.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>

#include "base/json.h"
#include "kernels/limits.h"
#include "tools/cpu_timer.h"

namespace df::tools {
namespace {

constexpr size_t kBytes = size_t{512} << 20;  // beyond every cache that we know of
constexpr int kRounds = 5;

// The most work a second that any round of `body` did, which returns its work.
template <typename Body>
double BestRate(const KernelContext& context, const Body& body) {
  double best = 0;
  for (int round = 0; round < kRounds; ++round) {
    const CpuTimer timer(context.pool.n_threads());
    const double work = body();
    best = std::max(best, work / timer.Seconds());
  }
  return best;
}

}  // namespace

Machine MeasureMachine(KernelContext& context) {
  Machine machine = {.n_threads = context.pool.n_threads()};
  Buffer<uint8_t> from(kBytes), to(kBytes);
  const auto fill = [&](size_t begin, size_t end, size_t) {
    std::memset(from.data() + begin, 1, end - begin);
    std::memset(to.data() + begin, 2, end - begin);
  };
  context.pool.ParallelFor(kBytes, 4096, fill);
  machine.read_bytes_per_second = BestRate(context, [&] {
    const volatile uint64_t digest = kernels::ReadMemory(context, from.span());
    (void)digest;
    return static_cast<double>(kBytes);
  });
  machine.copy_bytes_per_second = BestRate(context, [&] {
    context.pool.ParallelFor(kBytes, 4096, [&](size_t begin, size_t end, size_t) {
      std::memcpy(to.data() + begin, from.data() + begin, end - begin);
    });
    return static_cast<double>(kBytes);
  });
  constexpr size_t kSteps = 500'000;  // some 20 ms a round
  machine.flops_per_second = BestRate(context, [&] { return kernels::MultiplyAdd(context, kSteps); });
  machine.shuffle_bytes_per_second = BestRate(context, [&] { return kernels::ShuffleBytes(context, kSteps); });
  machine.dot_ops_per_second = BestRate(context, [&] { return kernels::DotBytes(context, kSteps); });
  machine.dot_bf16_flops_per_second = BestRate(context, [&] { return kernels::DotBf16(context, kSteps); });
  return machine;
}

double PeakDrift(const Machine& before, const Machine& after) {
  return std::abs(after.flops_per_second / before.flops_per_second - 1);
}

double Drift(const Machine& before, const Machine& after) {
  return std::max(std::abs(after.read_bytes_per_second / before.read_bytes_per_second - 1), PeakDrift(before, after));
}

Json ToJson(const Machine& machine) {
  return {{"threads", machine.n_threads},
          {"read_bytes_per_second", machine.read_bytes_per_second},
          {"copy_bytes_per_second", machine.copy_bytes_per_second},
          {"flops_per_second", machine.flops_per_second},
          {"shuffle_bytes_per_second", machine.shuffle_bytes_per_second},
          {"dot_ops_per_second", machine.dot_ops_per_second},
          {"dot_bf16_flops_per_second", machine.dot_bf16_flops_per_second}};
}

size_t LastLevelCacheBytes() {
  const long bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
  return bytes > 0 ? static_cast<size_t>(bytes) : 0;
}

std::string CpuName() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "";
}

}  // namespace df::tools
