#include "base/cpu_quota.h"

#include <algorithm>
#include <cstdlib>

namespace df {

size_t CpusWithinQuota(const std::string& cpu_max, size_t cpus) {
  char* end = nullptr;
  const double quota_us = std::strtod(cpu_max.c_str(), &end);  // "max" is no number
  const double period_us = std::strtod(end, nullptr);
  const double share = quota_us / period_us;
  if (!(quota_us > 0 && period_us > 0) || share >= static_cast<double>(cpus)) return cpus;
  return std::max<size_t>(static_cast<size_t>(share), 1);
}

}  // namespace df
