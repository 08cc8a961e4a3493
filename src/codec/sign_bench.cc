// Bytes of base and fine-tune encoded a second, beside what the machine reads a second with the same threads.
#include <benchmark/benchmark.h>

#include "base/float16.h"
#include "base/rng.h"
#include "codec/sign.h"

namespace df {
namespace {

constexpr size_t kRows = 4096, kCols = 4096;

std::vector<Bf16> RandomWeights(double change) {
  std::vector<Bf16> weights(kRows * kCols);
  for (size_t i = 0; i < weights.size(); ++i) {
    weights[i] = ToBf16(static_cast<float>(RandomUnit(1, i) - 0.5 + change * (RandomUnit(2, i) - 0.5)));
  }
  return weights;
}

TensorView View(const std::vector<Bf16>& weights) {
  return {DType::kBf16, Shape{kRows, kCols}, AsBytes(std::span<const Bf16>(weights))};
}

void BM_EncodeSign(benchmark::State& state) {
  const std::vector<Bf16> base = RandomWeights(0), fine_tune = RandomWeights(0.1);
  ThreadPool pool(static_cast<size_t>(state.range(1)));
  const WeightPair pair{"w", View(base), View(fine_tune)};
  const SignOptions options{.scale = static_cast<ScaleKind>(state.range(0))};
  for (auto _ : state) {
    auto encoded = EncodeSign(pool, pair, options);
    benchmark::DoNotOptimize(encoded);
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(2 * pair.base.bytes.size()));
}
BENCHMARK(BM_EncodeSign)
    ->ArgNames({"scale", "threads"})
    ->ArgsProduct({{0, 1, 2}, {1, 2}})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

// The limit: both tensors read once.
void BM_Read(benchmark::State& state) {
  const std::vector<Bf16> base = RandomWeights(0), fine_tune = RandomWeights(0.1);
  ThreadPool pool(static_cast<size_t>(state.range(0)));
  std::vector<uint64_t> sums(pool.n_threads());
  for (auto _ : state) {
    for (const auto* weights : {&base, &fine_tune}) {
      const auto* words = reinterpret_cast<const uint64_t*>(weights->data());
      pool.ParallelFor(weights->size() / 4, 4096, [&](size_t begin, size_t end, size_t thread) {
        uint64_t sum = 0;
        for (size_t i = begin; i < end; ++i) sum += words[i];
        sums[thread] += sum;
      });
    }
    benchmark::DoNotOptimize(sums.data());
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(2 * View(base).bytes.size()));
}
BENCHMARK(BM_Read)->ArgName("threads")->Arg(1)->Arg(2)->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace df
