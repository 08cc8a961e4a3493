#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <thread>
#include <vector>

#include "base/atomic_file.h"
#include "base/clock.h"
#include "base/even_shares.h"
#include "base/float16.h"
#include "base/mapped_file.h"
#include "base/presence.h"
#include "base/rng.h"
#include "base/thread_pool.h"
#include "base/utf8.h"

namespace df {
namespace {

class TemporaryDirectory : public ::testing::Test {
 protected:
  TemporaryDirectory() {
    std::string name = ::testing::TempDir() + "deltafold-base-XXXXXX";
    path_ = mkdtemp(name.data());
  }
  ~TemporaryDirectory() override { std::filesystem::remove_all(path_); }
  std::string path_;
};

using MappedFileTest = TemporaryDirectory;
using AtomicFileTest = TemporaryDirectory;
using PresenceTest = TemporaryDirectory;

TEST_F(MappedFileTest, SurvivesTruncationUnderTheMapping) {
  const std::string path = path_ + "/weights";
  ASSERT_TRUE(WriteFileAtomically(path, std::string(size_t{1} << 16, 'x')).ok());
  auto file = MappedFile::Open(path);
  ASSERT_TRUE(file.ok());
  ASSERT_EQ(truncate(path.c_str(), 100), 0);
  int sum = 0;
  for (const uint8_t byte : (*file)->bytes()) sum += byte;  // would be SIGBUS
  EXPECT_GT(sum, 0);
  EXPECT_FALSE((*file)->Intact());
  EXPECT_EQ((*file)->CheckIntact().code(), StatusCode::kCorrupt);
}

TEST_F(MappedFileTest, RefusesWhatIsNoRegularFile) {
  const std::string fifo = path_ + "/fifo", link = path_ + "/link", socket = path_ + "/socket";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  ASSERT_EQ(mknod(socket.c_str(), S_IFSOCK | 0600, 0), 0);
  std::filesystem::create_symlink("nowhere", link);
  for (const std::string& path : {path_, fifo, socket}) {
    EXPECT_EQ(MappedFile::Open(path).status().code(), StatusCode::kFailedPrecondition) << path;
    EXPECT_EQ(ReadFileBounded(path, 100).status().code(), StatusCode::kFailedPrecondition) << path;
    EXPECT_EQ(HasFile(path).status().code(), StatusCode::kFailedPrecondition) << path;
  }
  EXPECT_EQ(MappedFile::Open(path_ + "/absent").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(ReadFileBounded(path_ + "/absent", 100).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(ReadFileBounded(fifo + "/absent", 100).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(MappedFile::Open(link).status().code(), StatusCode::kCorrupt);
  EXPECT_EQ(ReadFileBounded(link, 100).status().code(), StatusCode::kCorrupt);
  EXPECT_NE(ReadFileBounded(link, 100).status().message().find("nowhere"), std::string::npos);
  EXPECT_EQ(MappedFile::Open(std::string("a\0b", 3)).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(PresenceTest, TellsWhatIsThereFromALinkToNothing) {
  ASSERT_TRUE(WriteFileAtomically(path_ + "/file", "x").ok());
  std::filesystem::create_symlink("file", path_ + "/link");
  EXPECT_TRUE(*HasFile(path_ + "/file"));
  EXPECT_TRUE(*HasFile(path_ + "/link"));
  EXPECT_FALSE(*HasFile(path_ + "/absent"));
  EXPECT_FALSE(*HasFile(path_ + "/file/inside"));
  std::filesystem::remove(path_ + "/file");
  const Status status = HasFile(path_ + "/link").status();
  EXPECT_EQ(status.code(), StatusCode::kCorrupt);
  EXPECT_NE(status.message().find("/link is a link to file"), std::string::npos) << status.message();
}

TEST_F(PresenceTest, ListsFilesByNameUpToALimit) {
  for (const char* name : {"/b.x", "/a.x", "/c.y"}) ASSERT_TRUE(WriteFileAtomically(path_ + name, "").ok());
  std::filesystem::create_symlink("nowhere", path_ + "/link");
  EXPECT_EQ(*ListFiles(path_, ".x", 2), (std::vector<std::string>{"a.x", "b.x"}));
  EXPECT_EQ(ListFiles(path_, ".x", 1).status().code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(ListFiles(path_ + "/absent", ".x", 1)->empty());
  EXPECT_EQ(ListFiles(path_ + "/a.x", ".x", 1).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(ListFiles(path_ + "/link", ".x", 1).status().code(), StatusCode::kCorrupt);
}

TEST_F(AtomicFileTest, AppearsOnlyOnCommit) {
  const std::string path = path_ + "/file";
  {
    auto file = AtomicFile::Create(path);
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE(file->Write(AsBytes("half")).ok());
  }
  EXPECT_TRUE(std::filesystem::is_empty(path_));
  ASSERT_TRUE(WriteFileAtomically(path, "whole").ok());
  EXPECT_EQ(*ReadFileBounded(path, 100), "whole");
  EXPECT_EQ(ReadFileBounded(path, 4).status().code(), StatusCode::kResourceExhausted);
}

TEST_F(AtomicFileTest, ReplacesNoDeviceAndNoDirectory) {
  const std::string fifo = path_ + "/fifo", link = path_ + "/link", directory = path_ + "/directory";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  std::filesystem::create_symlink("/dev/null", link);
  std::filesystem::create_directory(directory);
  for (const std::string& path : {fifo, link, directory}) {
    EXPECT_EQ(WriteFileAtomically(path, "x").code(), StatusCode::kFailedPrecondition) << path;
  }
  EXPECT_TRUE(std::filesystem::is_fifo(fifo));
  EXPECT_TRUE(std::filesystem::is_symlink(link));
}

TEST_F(AtomicFileTest, ReplacesNoDirectoryThatIsReadOrHoldsOtherThings) {
  const std::string outer = path_ + "/outer", input = outer + "/input", other = path_ + "/other",
                    file = path_ + "/file";
  for (const std::string& directory : {outer, input, other}) {
    std::filesystem::create_directory(directory);
    ASSERT_TRUE(WriteFileAtomically(directory + "/mine", "x").ok());
  }
  ASSERT_TRUE(WriteFileAtomically(file, "x").ok());
  std::filesystem::create_directory_symlink(input, path_ + "/link");
  const AtomicDirectory::Options options = {.replace = true, .mark = "mark", .inputs = {input}};
  const AtomicDirectory::Options marked = {.replace = true, .mark = "mine", .inputs = {input}};
  for (const std::string& path : {outer, input, path_ + "/link", input + "/../input/"}) {
    EXPECT_EQ(AtomicDirectory::Create(path, marked).status().code(), StatusCode::kFailedPrecondition) << path;
  }
  for (const std::string& path : {other, file}) {
    EXPECT_EQ(AtomicDirectory::Create(path, options).status().code(), StatusCode::kFailedPrecondition) << path;
  }
  auto allowed = AtomicDirectory::Create(other, marked);
  ASSERT_TRUE(allowed.ok()) << allowed.status().message();
  EXPECT_TRUE(allowed->Commit().ok());
  EXPECT_FALSE(std::filesystem::exists(other + "/mine"));
}

TEST_F(AtomicFileTest, DirectoryIsReplacedOnlyWhenAllowed) {
  const std::string path = path_ + "/directory";
  for (int round = 0; round < 2; ++round) {
    auto directory = AtomicDirectory::Create(path, {.replace = round == 1});
    ASSERT_TRUE(directory.ok());
    ASSERT_TRUE(WriteFileAtomically(directory->path() + "/round", std::to_string(round)).ok());
    ASSERT_TRUE(directory->Commit().ok());
  }
  EXPECT_EQ(*ReadFileBounded(path + "/round", 10), "1");
  EXPECT_EQ(AtomicDirectory::Create(path, {}).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(path_), {}), 1);
}

// A child that has begun to write `path` and is still at it.
class Writer {
 public:
  explicit Writer(const std::string& path) {
    int ready[2];
    EXPECT_EQ(pipe(ready), 0);
    child_ = fork();
    if (child_ == 0) {
      auto directory = AtomicDirectory::Create(path, {.replace = true});
      auto file = AtomicFile::Create(path + ".file");
      const bool wrote = directory.ok() && file.ok() && WriteFileAtomically(directory->path() + "/part", "x").ok();
      if (write(ready[1], wrote ? "y" : "n", 1) == 1) pause();
      _exit(1);
    }
    char answer = 0;
    EXPECT_EQ(read(ready[0], &answer, 1), 1);
    EXPECT_EQ(answer, 'y');
    close(ready[0]);
    close(ready[1]);
  }
  ~Writer() {
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
  }

 private:
  pid_t child_ = 0;
};

std::ptrdiff_t CountEntries(const std::string& directory) {
  return std::distance(std::filesystem::directory_iterator(directory), {});
}

TEST_F(AtomicFileTest, RemovesWhatAKilledWriterLeftAndNothingElse) {
  const std::string path = path_ + "/out";
  {
    const Writer killed(path), living(path);
    EXPECT_EQ(CountEntries(path_), 4);
  }
  {
    const Writer living(path);
    EXPECT_EQ(CountEntries(path_), 2) << "two writers were killed, this one is at work";
    ASSERT_TRUE(AtomicDirectory::Create(path, {}).ok());
    ASSERT_TRUE(AtomicFile::Create(path + ".file").ok());
    EXPECT_EQ(CountEntries(path_), 2) << "a living writer keeps its own";
    ASSERT_TRUE(AtomicDirectory::Create(path_ + "/other", {}).ok());
  }
  EXPECT_EQ(CountEntries(path_), 2);
  const std::string mine = std::to_string(getpid());
  for (const std::string& name : {"out.tmp-" + mine + "-0", std::string("out.tmp-1"), std::string("out.tmp-1-x"),
                                  std::string("out.tmp-1-0"), std::string("out.tmp--5-0")}) {
    std::filesystem::create_directory(path_ + "/" + name);  // other names, process 1 and what this process once used
  }
  ASSERT_TRUE(AtomicDirectory::Create(path, {}).ok());
  EXPECT_EQ(CountEntries(path_), 6) << "the killed writer's directory is gone, its file is another target's";
  ASSERT_TRUE(AtomicFile::Create(path + ".file").ok());
  EXPECT_EQ(CountEntries(path_), 5);
}

// In a container every run may have the same process number.
TEST_F(AtomicFileTest, RemovesWhatAFormerProcessOfTheSameNumberLeft) {
  const std::string path = path_ + "/out";
  const std::string left = path + ".tmp-" + std::to_string(getpid()) + "-1000000";
  std::filesystem::create_directory(left);
  ASSERT_TRUE(AtomicDirectory::Create(path, {}).ok());
  EXPECT_EQ(CountEntries(path_), 0);
}

// A worker shares its only CPU with the caller: waiting for it would cost a turn of the scheduler for each call.
TEST(ThreadPool, CallerDoesThePartsOfWorkersThatGetNoCpu) {
  cpu_set_t before, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  CPU_ZERO(&one);
  for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++cpu) {
    if (CPU_ISSET(cpu, &before)) CPU_SET(cpu, &one);
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  size_t n_by_caller = 0;
  {
    ThreadPool pool(4);  // its threads inherit the affinity
    const std::thread::id caller = std::this_thread::get_id();
    for (int call = 0; call < 1000; ++call) {
      std::array<bool, 4> by_caller = {};
      pool.ParallelFor(
          4, 1, [&](size_t, size_t, size_t thread) { by_caller[thread] = std::this_thread::get_id() == caller; });
      EXPECT_TRUE(by_caller[0]);
      n_by_caller += static_cast<size_t>(std::count(by_caller.begin() + 1, by_caller.end(), true));
    }
  }
  EXPECT_EQ(sched_setaffinity(0, sizeof(before), &before), 0);
  EXPECT_GT(n_by_caller, 0U);
}

// However many threads are asked for, there are no more than CPUs, and the parts stay those of the threads asked for.
TEST(ThreadPool, StartsNoMoreThreadsThanCpusAndStillRunsAllParts) {
  constexpr size_t kThreads = 64;
  ThreadPool pool(kThreads);
  std::array<std::thread::id, kThreads> ran_on;
  for (int call = 0; call < 300; ++call) {
    std::array<size_t, kThreads> sizes = {};
    pool.ParallelFor(3 * kThreads, 1, [&](size_t begin, size_t end, size_t thread) {
      sizes[thread] = end - begin;
      ran_on[thread] = std::this_thread::get_id();
    });
    for (const size_t size : sizes) ASSERT_EQ(size, 3U);
    std::sort(ran_on.begin(), ran_on.end());
    const auto n_distinct = std::unique(ran_on.begin(), ran_on.end()) - ran_on.begin();
    ASSERT_LE(static_cast<size_t>(n_distinct), UsableCpus());
  }
}

cpu_set_t MaskOf(pid_t thread) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  EXPECT_EQ(sched_getaffinity(thread, sizeof(mask), &mask), 0);
  return mask;
}

// The mask of the pool's worker, which is asked anew for its part of a call, from this thread; empty: it got no CPU in
// time.
cpu_set_t MaskOfWorker(ThreadPool& pool) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  std::atomic<bool> seen = false;
  const std::thread::id caller = std::this_thread::get_id();
  std::this_thread::sleep_for(std::chrono::milliseconds(2));  // the worker parks
  pool.ParallelFor(2, 1, [&](size_t, size_t, size_t thread) {
    if (thread == 1 && std::this_thread::get_id() != caller) {
      mask = MaskOf(0);
      seen = true;
    }
    const SteadyClock clock;
    for (const int64_t start_us = clock.NowUs(); thread == 0 && !seen && clock.NowUs() - start_us < 200'000;) {
    }
  });
  return mask;
}

// Waking a worker where the caller runs would make the two take turns beside an idle CPU.
TEST(ThreadPool, WorkersKeepOffTheCallersCpuWhereverItIsMoved) {
  if (UsableCpus() < 2) GTEST_SKIP() << "one CPU: no worker is started";
  const cpu_set_t before = MaskOf(0);
  int n_seen = 0;
  std::thread([&] {  // not the main thread, whose mask is the process's
    ThreadPool pool(2);
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (!CPU_ISSET(cpu, &before)) continue;
      cpu_set_t one;
      CPU_ZERO(&one);
      CPU_SET(cpu, &one);
      ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
      const cpu_set_t allowed = MaskOfWorker(pool);
      if (CPU_COUNT(&allowed) == 0) continue;
      ++n_seen;
      EXPECT_FALSE(CPU_ISSET(cpu, &allowed)) << cpu;
      EXPECT_EQ(CPU_COUNT(&allowed), CPU_COUNT(&before) - 1) << cpu;
    }
  })
      .join();
  EXPECT_GT(n_seen, 0);
}

// As `taskset -ap` does it to a running process, whose caller has to move for that.
TEST(ThreadPool, WorkersStayWithinAMaskThatTheProcessIsGivenLater) {
  if (UsableCpus() < 2) GTEST_SKIP() << "one CPU: no worker is started";
  const cpu_set_t before = MaskOf(0);
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &before)) cpus.push_back(cpu);
  }
  const auto confine = [](pid_t thread, int cpu) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    ASSERT_EQ(sched_setaffinity(thread, sizeof(one), &one), 0);
  };
  bool seen = false;
  std::thread([&] {
    ThreadPool pool(2);
    confine(0, cpus.front());
    static_cast<void>(MaskOfWorker(pool));
    confine(getpid(), cpus.back());
    confine(0, cpus.back());
    for (int call = 0; call < 20 && !seen; ++call) {
      const cpu_set_t allowed = MaskOfWorker(pool);
      if (CPU_COUNT(&allowed) == 0) continue;
      seen = true;
      EXPECT_EQ(CPU_COUNT(&allowed), 1);
      EXPECT_TRUE(CPU_ISSET(cpus.back(), &allowed));
    }
  }).join();
  EXPECT_EQ(sched_setaffinity(getpid(), sizeof(before), &before), 0);
  EXPECT_TRUE(seen);
}

TEST(ThreadPool, KeepsWhatIsNotWorthAThreadOnTheCaller) {
  ThreadPool pool(4);
  const std::thread::id caller = std::this_thread::get_id();
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{1000}, kMinPartBytes, 10 * kMinPartBytes}) {
    const size_t grain = GrainFor(bytes);
    EXPECT_GE(grain, 1U);
    EXPECT_LE((grain - 1) * bytes, kMinPartBytes);
    size_t n_calls = 0;
    pool.ParallelFor(grain, grain, [&](size_t begin, size_t end, size_t thread) {
      EXPECT_EQ(std::this_thread::get_id(), caller);
      EXPECT_EQ(begin, 0U);
      EXPECT_EQ(end, grain);
      EXPECT_EQ(thread, 0U);
      ++n_calls;
    });
    EXPECT_EQ(n_calls, 1U);
  }
}

TEST(ThreadPool, RunsEveryPartOnceInManyShortCalls) {
  ThreadPool pool(4);
  std::array<uint64_t, 4> runs = {};  // each part's own: no two threads may run one part at a time
  for (uint64_t call = 1; call <= 20000; ++call) {
    pool.ParallelFor(4, 1, [&](size_t begin, size_t end, size_t thread) {
      EXPECT_EQ(begin, thread);
      EXPECT_EQ(end, thread + 1);
      ++runs[thread];
    });
    ASSERT_EQ(runs, (std::array<uint64_t, 4>{call, call, call, call}));
  }
}

TEST(ThreadPool, VisitsEveryIndexOnceForAnyThreadsAndGrain) {
  for (const size_t n_threads : {1UL, 2UL, 3UL, 8UL}) {
    ThreadPool pool(n_threads);
    for (const size_t n : {0UL, 1UL, 5UL, 31UL, 1000UL}) {
      for (const size_t grain : {1UL, 4UL, 32UL}) {
        std::vector<std::atomic<int>> visits(n);
        pool.ParallelFor(n, grain, [&](size_t begin, size_t end, size_t thread) {
          EXPECT_LT(thread, n_threads);
          EXPECT_EQ(begin % grain, 0U);
          for (size_t i = begin; i < end; ++i) visits[i].fetch_add(1);
        });
        for (const auto& visit : visits) EXPECT_EQ(visit.load(), 1);
      }
    }
  }
}

TEST(ThreadPool, SharesEvenlyVisitsEveryIndexOnceForAnyThreadsAndPieces) {
  for (const size_t n_threads : {1UL, 2UL, 3UL, 7UL}) {
    ThreadPool pool(n_threads);
    for (const size_t n : {0UL, 1UL, 5UL, 64UL, 1000UL}) {
      for (const size_t piece : {1UL, 3UL, 64UL, 2000UL}) {
        std::vector<std::atomic<int>> visits(n), busy(n_threads);
        ParallelForEvenly(pool, n, piece, [&](size_t begin, size_t end, size_t thread) {
          EXPECT_EQ(busy[thread].fetch_add(1), 0) << "a number is one thread's at a time";
          EXPECT_TRUE(begin < end && (n_threads == 1 || end - begin <= piece));
          for (size_t i = begin; i < end; ++i) ++visits[i];
          --busy[thread];
        });
        for (size_t i = 0; i < n; ++i) ASSERT_EQ(visits[i].load(), 1) << i;
      }
    }
  }
}

TEST(ThreadPool, AThreadThatIsThroughTakesPiecesOfOneThatIsNot) {
  ThreadPool pool(2);
  std::atomic<size_t> n_done{0};
  // The first piece of the caller's half lasts until all others are done: somebody else did the rest of that half.
  ParallelForEvenly(pool, 100, 1, [&](size_t begin, size_t, size_t) {
    if (begin == 0) {
      const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (n_done.load() < 99 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    }
    ++n_done;
  });
  EXPECT_EQ(n_done.load(), 100U);
}

TEST(Float16, RoundTripsEveryHalf) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const F16 half{static_cast<uint16_t>(bits)};
    const float value = ToFloat(half);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(ToFloat(ToF16(value))));
    } else {
      EXPECT_EQ(ToF16(value).bits, half.bits);
    }
  }
}

TEST(Float16, RoundsToNearestEven) {
  EXPECT_EQ(ToF16(65519.0F).bits, 0x7BFF);
  EXPECT_EQ(ToF16(65520.0F).bits, 0x7C00);
  EXPECT_EQ(ToF16(std::ldexp(1.0F, -25)).bits, 0);
  EXPECT_EQ(ToF16(std::ldexp(1.5F, -25)).bits, 1);
  EXPECT_EQ(ToBf16(1.00390625F).bits, 0x3F80);  // 1 + 2^-8: a tie, to even
  EXPECT_EQ(ToBf16(1.01171875F).bits, 0x3F82);  // 1 + 3 * 2^-8: a tie, to even
  EXPECT_TRUE(std::isnan(ToFloat(ToBf16(std::nanf("")))));
}

TEST(Utf8, AcceptsExactlyTheStandard) {
  EXPECT_TRUE(IsValidUtf8("plain \xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80"));
  for (const char* bad : {"\xC0\xAF", "\xE0\x80\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xFF", "\x80", "\xE2\x82"}) {
    EXPECT_FALSE(IsValidUtf8(bad)) << bad;
  }
}

TEST(Utf8, EscapesWhatATerminalObeysAndNobodySees) {
  for (const auto& [text, escaped] :
       {std::pair<std::string, std::string>{"plain \xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80 \\",
                                            "plain \xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80 \\"},
        {"a\nb\tc\rd", "a\\nb\\tc\\rd"},
        {"\x1B[31m\x7F", "\\u001b[31m\\u007f"},
        {"\xC2\x9B", "\\u009b"},
        {"sql\xE2\x80\xAEnosj", "sql\\u202enosj"},
        {"\xE2\x81\xA6\xD8\x9C\xEF\xBB\xBF", "\\u2066\\u061c\\ufeff"},
        {"\xF3\xA0\x81\x81", "\\U000e0041"},
        {"\x9B\xFF\xE2\x80", "\\x9b\\xff\\xe2\\x80"},
        {std::string("\0", 1), "\\u0000"},
        {"", ""}}) {
    EXPECT_EQ(Escaped(text), escaped);
  }
}

TEST(Utf8, FindsTheUnfinishedCharacterAtTheEnd) {
  const std::string text = "a\xF0\x9F\x98\x80";
  EXPECT_EQ(CompleteUtf8Prefix(text), 5U);
  for (size_t n = 2; n < 5; ++n) EXPECT_EQ(CompleteUtf8Prefix(text.substr(0, n)), 1U);
  EXPECT_EQ(CompleteUtf8Prefix("a\xFF"), 2U);  // can never be finished: not held back
  EXPECT_EQ(CompleteUtf8Prefix(""), 0U);
}

TEST(Random, DrawsAreUniformAndDependOnSeedAndIndexOnly) {
  constexpr int kDraws = 20000;
  double sum = 0;
  for (uint64_t k = 0; k < kDraws; ++k) {
    const double unit = RandomUnit(7, k);
    ASSERT_GE(unit, 0.0);
    ASSERT_LT(unit, 1.0);
    sum += unit;
  }
  // Standard deviation of the mean is sqrt(1/12/20000) = 0.002; five of them.
  EXPECT_NEAR(sum / kDraws, 0.5, 0.0102);
  EXPECT_EQ(RandomBits(7, 3), RandomBits(7, 3));
  EXPECT_NE(RandomBits(7, 3), RandomBits(8, 3));
}

}  // namespace
}  // namespace df
