// The randomised decomposition beside LAPACK's exact one, and the eigenvalues of the Gram matrix.
#include <benchmark/benchmark.h>

#include "linalg/linalg_fixture.h"
#include "linalg/products.h"
#include "linalg/randomized_svd.h"

namespace df::linalg {
namespace {

void BM_RandomizedSvd(benchmark::State& state) {
  const auto rows = static_cast<size_t>(state.range(0)), cols = static_cast<size_t>(state.range(1));
  const RandomizedSvdOptions options{.rank = static_cast<size_t>(state.range(2))};
  const Mat<float> a = RandomMatrix(rows, cols, 1);
  ThreadPool pool(UsableCpus());
  for (auto _ : state) {
    auto found = RandomizedSvd(pool, RowsOf(a.view()), options);
    benchmark::DoNotOptimize(found);
  }
  const double flops = 4.0 * static_cast<double>(rows * cols * (options.rank + options.oversampling)) *
                       static_cast<double>(1 + options.power_iterations);
  state.counters["GFLOP/s"] =
      benchmark::Counter(flops * 1e-9, benchmark::Counter::kIsIterationInvariantRate, benchmark::Counter::kIs1000);
}
BENCHMARK(BM_RandomizedSvd)
    ->Args({2048, 2048, 16})
    ->Args({2048, 2048, 64})
    ->Args({4096, 14336, 16})
    ->Args({4096, 14336, 64})
    ->Args({4096, 14336, 256})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

void BM_ExactSvd(benchmark::State& state) {
  const auto n = static_cast<size_t>(state.range(0));
  const Mat<float> a = RandomMatrix(n, n, 1);
  for (auto _ : state) {
    auto found = ExactSvd(a.view());
    benchmark::DoNotOptimize(found);
  }
}
BENCHMARK(BM_ExactSvd)->Arg(512)->Arg(1024)->Arg(2048)->UseRealTime()->Unit(benchmark::kMillisecond);

void BM_SpectrumByGram(benchmark::State& state) {
  const Mat<float> a = RandomMatrix(static_cast<size_t>(state.range(0)), static_cast<size_t>(state.range(1)), 1);
  ThreadPool pool(UsableCpus());
  for (auto _ : state) {
    auto eigen = EigenOfSymmetric(Gram(pool, a.view()).view(), EigenPart::kValues);
    benchmark::DoNotOptimize(eigen);
  }
}
BENCHMARK(BM_SpectrumByGram)->Args({2048, 2048})->Args({4096, 14336})->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace df::linalg
