#include "base/thread_pool.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <fstream>
#include <string>

#include "base/check.h"
#include "base/cpu_quota.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace df {
namespace {

// A decode step calls ParallelFor some ten times a layer, microseconds apart: spinning that long spares a futex wake of
// about 5 us each. Longer spins steal a neighbour's core.
constexpr auto kSpinTime = std::chrono::microseconds(50);

void Pause() {
#if defined(__x86_64__)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

template <typename Condition>
bool SpinUntil(const Condition& condition) {
  const auto end = std::chrono::steady_clock::now() + kSpinTime;
  do {
    for (int i = 0; i < 64; ++i) {
      if (condition()) return true;
      Pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

// The process's mask as it is now, which an operator may change at any time (taskset, cpusets): that of its main
// thread, as no pool binds that one. Within it `cpus`, and all of it where those are none of it.
cpu_set_t WithinProcess(const cpu_set_t& cpus) {
  cpu_set_t process, both;
  CPU_ZERO(&process);
  if (sched_getaffinity(getpid(), sizeof(process), &process) != 0) return cpus;
  CPU_AND(&both, &cpus, &process);
  return CPU_COUNT(&both) > 0 ? both : process;
}

}  // namespace

ThreadPool::ThreadPool(size_t n_threads, std::vector<NumaNode> nodes) : nodes_(std::move(nodes)), slots_(n_threads) {
  DF_CHECK(n_threads >= 1);
  CPU_ZERO(&usable_);
  static_cast<void>(sched_getaffinity(0, sizeof(usable_), &usable_));
  // A thread more than there are CPUs would only take turns with the others. The split stays that of the threads asked
  // for.
  const size_t n_workers = std::min(n_threads, UsableCpus()) - 1;
  workers_.reserve(n_workers);
  try {
    for (size_t worker = 1; worker <= n_workers; ++worker) {
      workers_.emplace_back([this, worker] { Work(worker); });
    }
  } catch (const std::exception&) {  // no thread, no memory
  }
  KeepWorkersOff(sched_getcpu());
}

ThreadPool::~ThreadPool() {
  stopping_.store(true, std::memory_order_release);
  epoch_.fetch_add(1, std::memory_order_seq_cst);
  WakeParked();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::RunPart(size_t thread) {
  const size_t n_grains = (n_ + grain_ - 1) / grain_;
  const size_t begin = std::min(n_, n_grains * thread / n_threads() * grain_);
  const size_t end = std::min(n_, n_grains * (thread + 1) / n_threads() * grain_);
  if (begin < end) part_(body_, begin, end, thread);
}

void ThreadPool::TakePart(size_t thread) {
  // relaxed: only spares the exchange. acquire: what the opener published. From there on the call cannot end before
  // this part has.
  if (!slots_[thread].open.load(std::memory_order_relaxed)) return;
  if (!slots_[thread].open.exchange(false, std::memory_order_acq_rel)) return;
  RunPart(thread);
  n_running_.fetch_sub(1, std::memory_order_acq_rel);
}

void ThreadPool::Run(size_t n, size_t grain, Part part, const void* body) {
  if (n == 0) return;
  DF_CHECK(grain > 0);
  if (n_threads() == 1 || n <= grain) {
    part(body, 0, n, 0);
    return;
  }
  n_ = n;
  grain_ = grain;
  part_ = part;
  body_ = body;
  n_running_.store(n_threads() - 1, std::memory_order_relaxed);
  for (size_t thread = 1; thread < n_threads(); ++thread) {
    slots_[thread].open.store(true, std::memory_order_release);  // publishes n_, grain_, part_, body_
  }
  // seq_cst, as with n_parked_ in Work: either the worker sees the new epoch, or this thread sees that it parks.
  epoch_.fetch_add(1, std::memory_order_seq_cst);
  WakeParked();
  RunPart(0);
  // A worker that is not on a CPU by now may take milliseconds to get there: doing its part here costs less. From the
  // end, as workers start with the first ones.
  for (size_t thread = n_threads() - 1; thread > 0; --thread) TakePart(thread);
  // acquire: the parts' results are visible to the caller.
  const auto done = [this] { return n_running_.load(std::memory_order_acquire) == 0; };
  while (!SpinUntil(done)) std::this_thread::yield();
}

void ThreadPool::WakeParked() {
  if (n_parked_.load(std::memory_order_seq_cst) == 0) return;
  KeepWorkersOff(sched_getcpu());
  // A worker between its look at the epoch and its wait holds the lock.
  {
    const std::lock_guard lock(mutex_);
  }
  wake_.notify_all();
}

void ThreadPool::BindCaller() const {
  if (!nodes_.empty()) BindThisThread(nodes_[NodeOfThread(nodes_, 0, n_threads())]);
}

// The system may put a woken worker on the CPU of whoever wakes it, to wait there beside an idle CPU until the caller
// has done all parts. So that CPU is forbidden to workers first: a system call each when the caller has moved, none
// while it stays. Where nothing else is left they may run there too.
void ThreadPool::KeepWorkersOff(int caller_cpu) {
  if (caller_cpu < 0 || caller_cpu == caller_cpu_) return;
  caller_cpu_ = caller_cpu;
  for (size_t i = 0; i < workers_.size(); ++i) {
    const cpu_set_t cpus =
        WithinProcess(nodes_.empty() ? usable_ : CpuSetOf(nodes_[NodeOfThread(nodes_, i + 1, n_threads())]));
    cpu_set_t others = cpus;
    CPU_CLR(caller_cpu, &others);
    const cpu_set_t& allowed = CPU_COUNT(&others) > 0 ? others : cpus;
    static_cast<void>(pthread_setaffinity_np(workers_[i].native_handle(), sizeof(allowed), &allowed));  // advice
  }
}

void ThreadPool::Work(size_t worker) {
  uint64_t seen = 0;
  while (true) {
    const auto changed = [&] { return epoch_.load(std::memory_order_seq_cst) != seen; };
    if (!SpinUntil(changed)) {
      std::unique_lock lock(mutex_);
      n_parked_.fetch_add(1, std::memory_order_seq_cst);
      wake_.wait(lock, changed);
      n_parked_.fetch_sub(1, std::memory_order_relaxed);
    }
    seen = epoch_.load(std::memory_order_acquire);  // before stopping_: the destructor sets that first
    if (stopping_.load(std::memory_order_acquire)) return;
    // Its own part, then what no thread was started for.
    for (size_t thread = worker; thread < n_threads(); ++thread) TakePart(thread);
  }
}

size_t UsableCpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  size_t cpus = std::thread::hardware_concurrency();
  if (sched_getaffinity(0, sizeof(set), &set) == 0) cpus = static_cast<size_t>(CPU_COUNT(&set));
  std::ifstream quota_file("/sys/fs/cgroup/cpu.max");
  std::string cpu_max;
  std::getline(quota_file, cpu_max);
  return CpusWithinQuota(cpu_max, std::max<size_t>(cpus, 1));
}

}  // namespace df
