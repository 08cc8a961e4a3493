// How many of a machine's CPUs a container's quota leaves.
#ifndef DELTAFOLD_BASE_CPU_QUOTA_H_
#define DELTAFOLD_BASE_CPU_QUOTA_H_

#include <cstddef>
#include <string>

namespace df {

// `cpu_max` is the content of cgroup v2's cpu.max, "QUOTA PERIOD" in microseconds or "max PERIOD": the whole CPUs of
// QUOTA / PERIOD, at least 1 (half a CPU is no reason for 64 threads) and at most `cpus`; `cpus` where it sets no limit
// or is no such file. No errors.
size_t CpusWithinQuota(const std::string& cpu_max, size_t cpus);

}  // namespace df

#endif  // DELTAFOLD_BASE_CPU_QUOTA_H_
