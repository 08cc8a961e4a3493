// Merges of single tensors: bytes of the inputs a second for the element-wise methods, beside what the machine reads;
// whole calls for those with singular values.
#include <benchmark/benchmark.h>

#include <algorithm>

#include "base/float16.h"
#include "base/rng.h"
#include "codec/row_ops.h"
#include "linalg/products.h"
#include "merge/method.h"

namespace df::merge {
namespace {

// Uniform in [-0.5, 0.5) times `scale`, on all threads.
Mat<float> Uniform(ThreadPool& pool, size_t rows, size_t cols, uint64_t seed, double scale) {
  Mat<float> a(rows, cols);
  pool.ParallelFor(rows, 1, [&](size_t begin, size_t end, size_t) {
    for (size_t i = begin * cols; i < end * cols; ++i) {
      a.Row(0)[i] = static_cast<float>(scale * (RandomUnit(seed, i) - 0.5));
    }
  });
  return a;
}

// A tensor stored as BF16: the base (seed 0), or the base and a difference of `rank` terms and some noise (rank 0:
// noise alone).
std::vector<Bf16> MadeWeights(size_t rows, size_t cols, uint64_t seed, size_t rank) {
  ThreadPool pool(UsableCpus());
  Mat<float> made = Uniform(pool, rows, cols, 1, 0.1);
  std::vector<Bf16> weights(rows * cols);
  if (seed > 0) {
    const Mat<float> noise = Uniform(pool, rows, cols, seed + 200, rank == 0 ? 0.02 : 0.002);
    for (size_t i = 0; i < weights.size(); ++i) made.Row(0)[i] += noise.Row(0)[i];
  }
  if (seed > 0 && rank > 0) {
    const Mat<float> left = Uniform(pool, rows, rank, seed, 0.02), right = Uniform(pool, rank, cols, seed + 100, 1);
    linalg::AddProduct(left.view(), right.view(), made.view());
  }
  for (size_t i = 0; i < weights.size(); ++i) weights[i] = ToBf16(made.Row(0)[i]);
  return weights;
}

TensorView View(const std::vector<Bf16>& weights, size_t rows, size_t cols) {
  return {DType::kBf16, Shape{rows, cols}, AsBytes(std::span<const Bf16>(weights))};
}

// Merges three models of one tensor into BF16 again, over and over.
void BM_Elementwise(benchmark::State& state, const char* name, double density) {
  constexpr size_t kRows = 4096, kCols = 8192;
  std::vector<std::vector<Bf16>> weights;
  for (uint64_t seed = 0; seed < 4; ++seed) weights.push_back(MadeWeights(kRows, kCols, seed, 0));
  const Method& method = *FindMethodOrNull(name);
  TensorGroup group{.name = "w", .models = {}};
  if (method.needs_base) group.base = View(weights[0], kRows, kCols);
  const size_t n_models = std::min<size_t>(3, method.max_models);
  for (size_t i = 0; i < n_models; ++i) group.models.push_back(View(weights[1 + i], kRows, kCols));
  Settings settings = DefaultSettings(method, n_models);
  std::ranges::fill(settings.densities, density);
  settings.t = 0.3;
  std::vector<Bf16> out(kRows * kCols);
  ThreadPool pool(static_cast<size_t>(state.range(0)));
  const Sink sink = [&](size_t first, std::span<const float> values) {
    row_ops::Narrow(values, DType::kBf16, reinterpret_cast<uint8_t*>(out.data() + first));
  };
  for (auto _ : state) {
    auto report = Merge(pool, method, group, settings, sink);
    benchmark::DoNotOptimize(report);
  }
  const size_t n_read = n_models + (method.needs_base ? 1 : 0);
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>((n_read + 1) * out.size() * sizeof(Bf16)));
}
#define DF_BENCH(name, density)                           \
  BENCHMARK_CAPTURE(BM_Elementwise, name, #name, density) \
      ->ArgName("threads")                                \
      ->Arg(1)                                            \
      ->Arg(2)                                            \
      ->MeasureProcessCPUTime()                           \
      ->UseRealTime()                                     \
      ->Unit(benchmark::kMillisecond)
DF_BENCH(linear, 1);
DF_BENCH(task_arithmetic, 1);
DF_BENCH(slerp, 1);
DF_BENCH(ties, 0.3);
DF_BENCH(dare_linear, 0.3);
DF_BENCH(dare_ties, 0.3);

// The limit: as many bytes copied as a linear merge of three reads and writes, in its proportion: three read, one
// written.
void BM_ReadThreeWriteOne(benchmark::State& state) {
  constexpr size_t kWords = size_t{4096} * 8192 * 2 / 8;
  std::vector<uint64_t> a(kWords, 1), b(kWords, 2), c(kWords, 3), out(kWords);
  ThreadPool pool(static_cast<size_t>(state.range(0)));
  for (auto _ : state) {
    pool.ParallelFor(kWords, 4096, [&](size_t begin, size_t end, size_t) {
      for (size_t i = begin; i < end; ++i) out[i] = a[i] + b[i] + c[i];
    });
    benchmark::DoNotOptimize(out.data());
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(4 * kWords * 8));
}
BENCHMARK(BM_ReadThreeWriteOne)->ArgName("threads")->Arg(1)->Arg(2)->UseRealTime()->Unit(benchmark::kMillisecond);

// One 4096 x 14336 tensor: a difference of `rank` terms and noise (randomised way), or of noise alone (Gram).
void BM_Monosoup(benchmark::State& state) {
  constexpr size_t kRows = 4096, kCols = 14336;
  const auto rank = static_cast<size_t>(state.range(0));
  const std::vector<Bf16> base = MadeWeights(kRows, kCols, 0, 0), model = MadeWeights(kRows, kCols, 1, rank);
  const Method& method = *FindMethodOrNull("monosoup");
  const TensorGroup group{.name = "w", .base = View(base, kRows, kCols), .models = {View(model, kRows, kCols)}};
  std::vector<Bf16> out(kRows * kCols);
  ThreadPool pool(UsableCpus());
  const Sink sink = [&](size_t first, std::span<const float> values) {
    row_ops::Narrow(values, DType::kBf16, reinterpret_cast<uint8_t*>(out.data() + first));
  };
  for (auto _ : state) {
    auto report = Merge(pool, method, group, DefaultSettings(method, 1), sink);
    state.counters["kept"] = static_cast<double>(report->spectra[0].rank);
    state.SetLabel(std::string(WayName(report->way)));
  }
}
BENCHMARK(BM_Monosoup)
    ->ArgName("rank")
    ->Arg(16)
    ->Arg(128)
    ->Arg(280)
    ->Arg(0)
    ->Iterations(1)
    ->MeasureProcessCPUTime()
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace df::merge
