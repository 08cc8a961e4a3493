#include "base/numa.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/thread_pool.h"
#include "testing/memory_policy.h"
#include "testing/temporary_directory.h"

namespace df {
namespace {

using Cpus = std::vector<size_t>;

TEST(CpuList, IsReadAsTheSystemWritesIt) {
  EXPECT_EQ(ParseCpuList("0"), Cpus({0}));
  EXPECT_EQ(ParseCpuList("0-3,8,10-11"), Cpus({0, 1, 2, 3, 8, 10, 11}));
  EXPECT_EQ(ParseCpuList("4-5,0-1,5"), Cpus({0, 1, 4, 5}));
  EXPECT_EQ(ParseCpuList(""), Cpus());
  for (const char* wrong : {"x", "-1", "1-", "3-2", "1,", ",1", "1 2", "4096", "0-99999999", "1--2"}) {
    EXPECT_FALSE(ParseCpuList(wrong)) << wrong;
  }
}

class NumaNodes : public ::testing::Test {
 protected:
  void Write(const std::string& name, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(directory_.path() + "/" + name).parent_path());
    std::ofstream(directory_.path() + "/" + name) << text << "\n";
  }
  std::vector<NumaNode> Read(const Cpus& usable) { return ReadNumaNodes(directory_.path(), usable); }

  testing::TemporaryDirectory directory_;
};

TEST_F(NumaNodes, AreThoseWithUsableCpus) {
  Write("online", "0-2,4");
  Write("node0/cpulist", "0-3,8-11");
  Write("node1/cpulist", "4-7,12-15");
  Write("node2/cpulist", "");  // memory alone
  Write("node4/cpulist", "16-19");
  const auto nodes = Read({1, 2, 9, 12, 13});
  ASSERT_EQ(nodes.size(), 2u);
  EXPECT_EQ(nodes[0].id, 0u);
  EXPECT_EQ(nodes[0].cpus, Cpus({1, 2, 9}));
  EXPECT_EQ(nodes[1].id, 1u);
  EXPECT_EQ(nodes[1].cpus, Cpus({12, 13}));
  EXPECT_TRUE(Read({1, 2}).empty()) << "one node: nothing to decide";
}

TEST_F(NumaNodes, AreNoneWhereTheyCannotBeRead) {
  EXPECT_TRUE(Read({0, 1}).empty());
  Write("online", "0");
  Write("node0/cpulist", "0-1");
  EXPECT_TRUE(Read({0, 1}).empty());
  Write("online", "0-1");
  Write("node1/cpulist", "nonsense");
  EXPECT_TRUE(Read({0, 1}).empty());
}

TEST(NodeOfThread, FillsNodesInProportionToTheirCpus) {
  const auto all = [](const std::vector<NumaNode>& nodes, size_t n_threads) {
    std::vector<size_t> of;
    for (size_t thread = 0; thread < n_threads; ++thread) of.push_back(NodeOfThread(nodes, thread, n_threads));
    return of;
  };
  const std::vector<NumaNode> equal = {{.id = 0, .cpus = {0, 1, 2, 3}}, {.id = 1, .cpus = {4, 5, 6, 7}}};
  EXPECT_EQ(all(equal, 8), Cpus({0, 0, 0, 0, 1, 1, 1, 1}));
  EXPECT_EQ(all(equal, 2), Cpus({0, 1}));
  EXPECT_EQ(all(equal, 1), Cpus({0}));
  EXPECT_EQ(all(equal, 3), Cpus({0, 0, 1}));
  EXPECT_EQ(all(equal, 16), Cpus({0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1}));
  const std::vector<NumaNode> unequal = {{.id = 0, .cpus = {0, 1, 2}}, {.id = 3, .cpus = {9}}};
  EXPECT_EQ(all(unequal, 4), Cpus({0, 0, 0, 1}));
}

TEST(NumaShares, AreTheThreadsPartsInWholeHugePages) {
  constexpr size_t kHuge = size_t{2} << 20;
  const std::vector<NumaNode> nodes = {{.id = 0, .cpus = {0, 1}}, {.id = 5, .cpus = {2, 3}}};
  const auto shares = NumaShares(nodes, 4, kHuge - 4096, 9 * kHuge);
  ASSERT_EQ(shares.size(), 2u);
  EXPECT_EQ(shares[0].node_id, 0u);
  EXPECT_EQ(shares[0].begin, 4096u);
  EXPECT_EQ(shares[0].end, 4096 + 4 * kHuge);
  EXPECT_EQ(shares[1].node_id, 5u);
  EXPECT_EQ(shares[1].begin, shares[0].end);
  EXPECT_EQ(shares[1].end, 4096 + 8 * kHuge);
  EXPECT_TRUE(NumaShares(nodes, 4, 4096, kHuge).empty()) << "no whole huge page";
  EXPECT_EQ(NumaShares(nodes, 64, 0, kHuge).size(), 1u) << "fewer pages than threads";
  EXPECT_TRUE(NumaShares({}, 4, 0, 9 * kHuge).empty()) << "one node";
}

TEST(PlaceShares, SetsThePolicyOfThePages) {
  constexpr size_t kBytes = size_t{8} << 20;
  void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  const auto* middle = static_cast<uint8_t*>(memory) + kBytes / 2;
  if (!testing::MemoryPolicyAt(middle)) GTEST_SKIP() << "the system has no memory policies";
  EXPECT_EQ(testing::MemoryPolicyAt(middle)->mode, 0);
  // Every machine has a node 0: two that are the same suffice to see that the system takes the call.
  const std::vector<NumaNode> nodes = {{.id = 0, .cpus = {0}}, {.id = 0, .cpus = {1}}};
  PlaceShares({.nodes = nodes, .n_threads = 2}, {static_cast<uint8_t*>(memory), kBytes});
  EXPECT_EQ(testing::MemoryPolicyAt(middle)->mode, 1);
  munmap(memory, kBytes);
}

TEST(ThreadPool, BindsEachWorkerToTheNodeOfItsPart) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  Cpus usable;
  for (size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &before)) usable.push_back(cpu);
  }
  if (UsableCpus() < 2) GTEST_SKIP() << "one CPU: no worker is started";
  ThreadPool pool(2, {{.id = 0, .cpus = {usable.front()}}, {.id = 1, .cpus = {usable.back()}}});
  const auto caller = std::this_thread::get_id();
  std::atomic<bool> seen = false;
  while (!seen) {  // on a busy machine the caller may do the worker's part
    pool.ParallelFor(2, 1, [&](size_t, size_t, size_t thread) {
      if (std::this_thread::get_id() == caller) {
        if (thread == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        return;
      }
      cpu_set_t set;
      ASSERT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
      EXPECT_EQ(CPU_COUNT(&set), 1);
      EXPECT_TRUE(CPU_ISSET(usable.back(), &set));
      seen = true;
    });
  }
  cpu_set_t after;
  ASSERT_EQ(sched_getaffinity(0, sizeof(after), &after), 0);
  EXPECT_TRUE(CPU_EQUAL(&before, &after)) << "the caller is bound only when it asks for it";
  std::thread([&] {
    pool.BindCaller();
    cpu_set_t set;
    ASSERT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
    EXPECT_EQ(CPU_COUNT(&set), 1);
    EXPECT_TRUE(CPU_ISSET(usable.front(), &set));
  }).join();
}

}  // namespace
}  // namespace df
