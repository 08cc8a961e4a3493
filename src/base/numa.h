// Memory nodes of a machine with several of them: threads and the pages that they read should lie on the same one,
// since a remote page comes at half the speed. All of it is advice to the system: where it is refused, nothing is lost
// but speed. On a machine with one node there is no list and nothing is done.
#ifndef DELTAFOLD_BASE_NUMA_H_
#define DELTAFOLD_BASE_NUMA_H_

#include <sched.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"

namespace df {

struct NumaNode {
  size_t id = 0;             // the system's number
  std::vector<size_t> cpus;  // those that may be used, ascending, at least one
};

// "0-3,8" -> 0 1 2 3 8. Nothing for what is no such list or names a CPU or node from 4096 on; "" is an empty list.
std::optional<std::vector<size_t>> ParseCpuList(std::string_view list);

// The nodes below `root` ("node0/cpulist" ...) that have CPUs among `usable`, by number; none where there are fewer
// than two of them or they cannot be read.
std::vector<NumaNode> ReadNumaNodes(const std::string& root, std::span<const size_t> usable);
// Of this machine, for the CPUs in this thread's affinity mask.
std::vector<NumaNode> UsableNumaNodes();

// Index of the node of thread `thread` of `n_threads`: threads in ascending order fill the nodes in proportion to their
// CPUs, so that neighbours in a static partition share a node. `nodes` is not empty.
size_t NodeOfThread(std::span<const NumaNode> nodes, size_t thread, size_t n_threads);

// What of some memory should lie on a node.
struct NumaShare {
  size_t node_id = 0;
  size_t begin = 0, end = 0;  // bytes
};
// Memory of `size` bytes at `address` that `n_threads` threads read in equal parts, by the nodes of these. Bounds are
// rounded to huge pages (what is smaller than one stays where it falls); neighbours on one node are joined.
std::vector<NumaShare> NumaShares(std::span<const NumaNode> nodes, size_t n_threads, uintptr_t address, size_t size);

// The threads that will read some memory in equal parts, and the nodes that they are spread over (none: nothing to
// decide).
struct NumaReaders {
  std::vector<NumaNode> nodes;
  size_t n_threads = 1;
};
// Asks for the pages of untouched memory to come from the nodes of the threads that read them, whoever touches them
// first.
void PlaceShares(const NumaReaders& readers, MutableBytes memory);
// The node's CPUs as the system's calls want them.
cpu_set_t CpuSetOf(const NumaNode& node);
// Confines the calling thread to them.
void BindThisThread(const NumaNode& node);

}  // namespace df

#endif  // DELTAFOLD_BASE_NUMA_H_
