// What it costs to hand work to another thread: the least that a part must be worth (kMinPartBytes).
#include <benchmark/benchmark.h>

#include <chrono>
#include <thread>

#include "base/thread_pool.h"

namespace df {
namespace {

void Empty(benchmark::State& state) {
  ThreadPool pool(static_cast<size_t>(state.range(0)));
  for (auto _ : state) {
    pool.ParallelFor(pool.n_threads(), 1, [](size_t, size_t, size_t) {});
  }
}
BENCHMARK(Empty)->Name("thread_pool_empty_call_spinning")->Arg(1)->Arg(2)->Arg(4)->Arg(16)->Arg(64)->UseRealTime();

// After a pause in which the workers park.
void AfterPause(benchmark::State& state) {
  ThreadPool pool(static_cast<size_t>(state.range(0)));
  for (auto _ : state) {
    std::this_thread::sleep_for(std::chrono::microseconds(500));
    const auto start = std::chrono::steady_clock::now();
    pool.ParallelFor(pool.n_threads(), 1, [](size_t, size_t, size_t) {});
    state.SetIterationTime(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
}
BENCHMARK(AfterPause)->Name("thread_pool_empty_call_parked")->Arg(2)->Arg(4)->Arg(64)->UseManualTime();

// A part of some microseconds on each of two threads, against both on one.
void ShortParts(benchmark::State& state) {
  ThreadPool pool(static_cast<size_t>(state.range(0)));
  const auto n_steps = static_cast<size_t>(state.range(1));
  for (auto _ : state) {
    pool.ParallelFor(2, 1, [&](size_t begin, size_t end, size_t) {
      double sum = 0;
      for (size_t i = 0; i < n_steps * (end - begin); ++i) benchmark::DoNotOptimize(sum += 1.0);
    });
  }
}
BENCHMARK(ShortParts)
    ->Name("thread_pool_two_parts")
    ->ArgNames({"threads", "steps"})
    ->ArgsProduct({{1, 2}, {1000, 4000, 16000}})
    ->UseRealTime();

}  // namespace
}  // namespace df
