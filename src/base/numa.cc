#include "base/numa.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>

namespace df {
namespace {

constexpr size_t kMaxNumber = 4096;  // CPUs or nodes: what Linux is built for at most is 8192 and 1024
constexpr uintptr_t kHugePageBytes = uintptr_t{2} << 20;
constexpr int kPreferred = 1;  // MPOL_PREFERRED: of this node as long as it has memory

// One number, or nothing; `text` loses it.
std::optional<size_t> TakeNumber(std::string_view& text) {
  size_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || value >= kMaxNumber) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return value;
}

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::vector<size_t> CpusOfThisThread() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<size_t> cpus;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return cpus;
  for (size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

}  // namespace

std::optional<std::vector<size_t>> ParseCpuList(std::string_view list) {
  std::vector<size_t> cpus;
  while (!list.empty()) {
    const std::optional<size_t> first = TakeNumber(list);
    std::optional<size_t> last = first;
    if (first && list.starts_with("-")) {
      list.remove_prefix(1);
      last = TakeNumber(list);
    }
    if (!first || !last || *last < *first) return std::nullopt;
    for (size_t cpu = *first; cpu <= *last; ++cpu) cpus.push_back(cpu);
    if (list.empty()) break;
    if (!list.starts_with(",") || list.size() == 1) return std::nullopt;
    list.remove_prefix(1);
  }
  std::sort(cpus.begin(), cpus.end());
  cpus.erase(std::unique(cpus.begin(), cpus.end()), cpus.end());
  return cpus;
}

std::vector<NumaNode> ReadNumaNodes(const std::string& root, std::span<const size_t> usable) {
  std::vector<NumaNode> nodes;
  const auto ids = ParseCpuList(FirstLine(root + "/online"));
  if (!ids || ids->size() < 2) return {};
  for (const size_t id : *ids) {
    const auto cpus = ParseCpuList(FirstLine(root + "/node" + std::to_string(id) + "/cpulist"));
    if (!cpus) return {};
    NumaNode node = {.id = id, .cpus = {}};
    std::ranges::set_intersection(*cpus, usable, std::back_inserter(node.cpus));
    if (!node.cpus.empty()) nodes.push_back(std::move(node));
  }
  if (nodes.size() < 2) nodes.clear();
  return nodes;
}

std::vector<NumaNode> UsableNumaNodes() { return ReadNumaNodes("/sys/devices/system/node", CpusOfThisThread()); }

size_t NodeOfThread(std::span<const NumaNode> nodes, size_t thread, size_t n_threads) {
  size_t n_cpus = 0;
  for (const NumaNode& node : nodes) n_cpus += node.cpus.size();
  // The thread's CPU, were they dealt out evenly.
  const size_t cpu = thread * n_cpus / n_threads;
  size_t before = 0;
  for (size_t i = 0; i + 1 < nodes.size(); ++i) {
    before += nodes[i].cpus.size();
    if (cpu < before) return i;
  }
  return nodes.size() - 1;
}

std::vector<NumaShare> NumaShares(std::span<const NumaNode> nodes, size_t n_threads, uintptr_t address, size_t size) {
  std::vector<NumaShare> shares;
  if (nodes.empty()) return shares;
  const uintptr_t first_page = (address + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  const uintptr_t end_page = (address + size) / kHugePageBytes * kHugePageBytes;
  const auto bound = [&](size_t thread) {
    const uintptr_t at = (address + size / n_threads * thread) / kHugePageBytes * kHugePageBytes;
    return thread == n_threads ? end_page : std::clamp(at, first_page, std::max(first_page, end_page));
  };
  for (size_t thread = 0; thread < n_threads; ++thread) {
    const uintptr_t begin = bound(thread), end = bound(thread + 1);
    if (begin >= end) continue;
    const size_t id = nodes[NodeOfThread(nodes, thread, n_threads)].id;
    if (!shares.empty() && shares.back().node_id == id) {
      shares.back().end = end - address;
    } else {
      shares.push_back({.node_id = id, .begin = begin - address, .end = end - address});
    }
  }
  return shares;
}

void PlaceShares(const NumaReaders& readers, MutableBytes memory) {
  constexpr size_t kWordBits = 8 * sizeof(unsigned long);
  for (const NumaShare& share :
       NumaShares(readers.nodes, readers.n_threads, reinterpret_cast<uintptr_t>(memory.data()), memory.size())) {
    std::array<unsigned long, kMaxNumber / kWordBits> mask = {};
    mask[share.node_id / kWordBits] |= 1UL << share.node_id % kWordBits;
    // The system counts one bit less than it is told. What it refuses is advice that is not taken.
    static_cast<void>(syscall(SYS_mbind, memory.data() + share.begin, share.end - share.begin, kPreferred, mask.data(),
                              share.node_id + 2, 0));
  }
}

cpu_set_t CpuSetOf(const NumaNode& node) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const size_t cpu : node.cpus) {
    if (cpu < CPU_SETSIZE) CPU_SET(cpu, &set);
  }
  return set;
}

void BindThisThread(const NumaNode& node) {
  const cpu_set_t set = CpuSetOf(node);
  static_cast<void>(sched_setaffinity(0, sizeof(set), &set));
}

}  // namespace df
