// Where the system was asked to take a page from.
#ifndef DELTAFOLD_TESTING_MEMORY_POLICY_H_
#define DELTAFOLD_TESTING_MEMORY_POLICY_H_

#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <optional>

namespace df::testing {

struct MemoryPolicy {
  int mode = 0;            // 0 = default, 1 = preferred (MPOL_PREFERRED)
  unsigned long mask = 0;  // of nodes 0 to 63
};

// Of the page at `address`; nothing where the system has no memory policies.
inline std::optional<MemoryPolicy> MemoryPolicyAt(const void* address) {
  constexpr unsigned long kOfAddress = 2, kMaxNodes = 1024;  // MPOL_F_ADDR; more nodes than Linux is built for
  std::array<unsigned long, kMaxNodes / 64> nodes = {};
  MemoryPolicy policy;
  if (syscall(SYS_get_mempolicy, &policy.mode, nodes.data(), kMaxNodes, address, kOfAddress) != 0) return std::nullopt;
  policy.mask = nodes[0];
  return policy;
}

}  // namespace df::testing

#endif  // DELTAFOLD_TESTING_MEMORY_POLICY_H_
