// For tests of what a process holds.
#ifndef DELTAFOLD_TESTING_PROCESS_MEMORY_H_
#define DELTAFOLD_TESTING_PROCESS_MEMORY_H_

#include <sys/resource.h>

#include <cstddef>
#include <fstream>
#include <string>

namespace df::testing {

// A sanitizer's own memory is not ours: skip the test then.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#elif defined(__has_feature)
inline constexpr bool kSanitized = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
inline constexpr bool kSanitized = false;
#endif

// A field of /proc/self/status that counts memory: "VmRSS", "VmHWM" (its peak), "RssAnon".
inline size_t StatusBytes(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    size_t kilobytes = 0;
    if (word == field + ":" && status >> kilobytes) return kilobytes * 1024;
  }
  return 0;
}

// Sets VmHWM to the present.
inline void ResetPeak() { std::ofstream("/proc/self/clear_refs") << "5"; }

// Leaves this process `bytes` of address space more than it has, for good; false when the system does not.
inline bool LimitAddressSpace(size_t bytes) {
  const rlim_t most = StatusBytes("VmSize") + bytes;
  const rlimit limit = {.rlim_cur = most, .rlim_max = most};
  return setrlimit(RLIMIT_AS, &limit) == 0;
}

}  // namespace df::testing

#endif  // DELTAFOLD_TESTING_PROCESS_MEMORY_H_
