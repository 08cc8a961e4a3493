// Figures of linear.h beside the machine's limits measured in the same run. One matrix of 4096 x 4096, rotated over
// enough copies to leave every cache; CPU time of one thread (DELTAFOLD_THREADS: of more). The vector target is
// DELTAFOLD_TARGET's:
//   DELTAFOLD_TARGET=avx2 kernels_bench --benchmark_filter=Linear --benchmark_repetitions=8
//       --benchmark_enable_random_interleaving=true --benchmark_report_aggregates_only=true
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "kernels/cost.h"
#include "kernels/limits.h"
#include "kernels/linear.h"
#include "kernels/linear_fixture.h"
#include "kernels/target.h"

namespace df::kernels {
namespace {

// The header of every report names the target; a wrong DELTAFOLD_TARGET ends the program before a figure is printed.
const bool kTargetNamed = [] {
  const Status status = SetTargetFromEnvironment();
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.message().c_str());
    std::exit(2);
  }
  benchmark::AddCustomContext("vector target", CurrentTarget());
  return true;
}();

constexpr size_t kSize = 4096;
constexpr size_t kCopies = 16;    // x 32 MB of bf16 = 512 MB
constexpr size_t kVariants = 64;  // x 2 MB of signs
constexpr size_t kMaxRows = 256;

// CPU time counts one thread alone: with more, read the column of real time.
size_t Threads() {
  const char* text = std::getenv("DELTAFOLD_THREADS");
  return text == nullptr ? 1 : std::max<size_t>(1, std::strtoul(text, nullptr, 10));
}

struct World {
  World() : context(Threads()), store(1) {
    weight = store.Random(DType::kBf16, {kSize, kSize}, -0.1F, 0.1F);
    for (size_t i = 0; i < kCopies; ++i) {
      bases.emplace_back();
      bases.back().weight = PackWeight(context, weight);
    }
    stored = RandomDelta(store, kSize, kSize, {.planes = 1, .row_scale = true});
    for (size_t i = 0; i < kVariants; ++i) variants.push_back(PackDelta(context, stored));
    const LinearDelta adapter = RandomDelta(store, kSize, kSize, {.ranks = {16}});
    for (size_t i = 0; i < kVariants; ++i) adapters.push_back(PackDelta(context, adapter));
    x = RandomRows(store, kMaxRows, kSize);
    y = Mat<float>(kMaxRows, kSize);
  }

  KernelContext context;
  TensorStore store;
  TensorView weight;
  LinearDelta stored;
  std::vector<LinearWeight> bases;
  std::vector<PackedDelta> variants;
  std::vector<PackedDelta> adapters;  // LoRA, x 256 KB
  Mat<float> x;
  Mat<float> y;
};

World& TheWorld() {
  static World* world = new World();  // the benchmarks' shared data; made on first use, freed with the process
  return *world;
}

void Report(benchmark::State& state, const Cost& cost) {
  using benchmark::Counter;
  state.counters["GB/s"] = Counter(cost.bytes / 1e9, Counter::kIsIterationInvariantRate);
  state.counters["GFLOP/s"] = Counter(cost.flops / 1e9, Counter::kIsIterationInvariantRate);
}

void LimitReadMemory(benchmark::State& state) {
  World& world = TheWorld();
  size_t i = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(ReadMemory(world.context, world.bases[i++ % kCopies].weight.tiles.span()));
  }
  Report(state, {.bytes = static_cast<double>(world.bases[0].weight.bytes()), .flops = 0});
}
BENCHMARK(LimitReadMemory);

void LimitMultiplyAdd(benchmark::State& state) {
  World& world = TheWorld();
  double flops = 0;
  for (auto _ : state) flops = MultiplyAdd(world.context, 100000);
  Report(state, {.bytes = 0, .flops = flops});
}
BENCHMARK(LimitMultiplyAdd);

// Into fresh memory, as packing writes it: the pages' first touch is part of loading.
void LimitCopyMemory(benchmark::State& state) {
  World& world = TheWorld();
  for (auto _ : state) {
    Buffer<uint8_t> copy(world.weight.bytes.size());
    std::memcpy(copy.data(), world.weight.bytes.data(), copy.size());
    benchmark::DoNotOptimize(copy.data());
  }
  Report(state, {.bytes = static_cast<double>(world.weight.bytes.size()), .flops = 0});
}
BENCHMARK(LimitCopyMemory);

// A call of `n` rows: of `n_variants` variants with signs, an equal share each, or all with `shared` (null = base).
void RunLinear(benchmark::State& state, Phase phase, size_t n, size_t n_variants, const PackedDelta* shared = nullptr,
               const std::vector<PackedDelta>& variants = TheWorld().variants) {
  World& world = TheWorld();
  std::vector<LinearSegment> segments;
  const size_t n_segments = std::max<size_t>(1, n_variants);
  for (size_t s = 0; s < n_segments; ++s) {
    segments.push_back({.begin = n * s / n_segments, .end = n * (s + 1) / n_segments, .phase = phase, .delta = shared});
  }
  size_t call = 0;
  for (auto _ : state) {
    for (size_t s = 0; s < n_variants; ++s) {
      segments[s].delta = &variants[(call * n_variants + s) % kVariants];
    }
    Linear(world.context, world.bases[call++ % kCopies], segments, MatView<const float>(world.x.Row(0), n, kSize),
           world.y.Rows(0, n));
  }
  Report(state, LinearCost(world.context.options, world.bases[0], segments));
}

void LinearDecodeBase(benchmark::State& state) {
  RunLinear(state, Phase::kDecode, static_cast<size_t>(state.range(0)), 0);
}
BENCHMARK(LinearDecodeBase)->Arg(1)->Arg(2)->Arg(4)->Arg(8)->Arg(16)->Arg(32);

// Every row a variant of its own; by `kernel`.
void DecodeVariants(benchmark::State& state, SignKernel kernel) {
  const auto n = static_cast<size_t>(state.range(0));
  TheWorld().context.options = {.sign_kernel = kernel};
  RunLinear(state, Phase::kDecode, n, n);
  TheWorld().context.options = {};
}
BENCHMARK_CAPTURE(DecodeVariants, exact, SignKernel::kExact)->Arg(1)->Arg(2)->Arg(4)->Arg(8);
BENCHMARK_CAPTURE(DecodeVariants, lut, SignKernel::kLookup)->Arg(1)->Arg(2)->Arg(4)->Arg(8);

// All rows of one variant: where its signs are better folded.
void DecodeOneVariant(benchmark::State& state, KernelOptions options) {
  TheWorld().context.options = options;
  RunLinear(state, Phase::kDecode, static_cast<size_t>(state.range(0)), 1);
  TheWorld().context.options = {};
}
constexpr KernelOptions kFixedExact = {.sign_kernel = SignKernel::kExact};
constexpr KernelOptions kFixedLookup = {.sign_kernel = SignKernel::kLookup};
BENCHMARK_CAPTURE(DecodeOneVariant, exact, kFixedExact)->Arg(4)->Arg(6)->Arg(8)->Arg(12);
BENCHMARK_CAPTURE(DecodeOneVariant, lut, kFixedLookup)->Arg(4)->Arg(6)->Arg(8)->Arg(12);

// Every row an adapter of its own, of rank 16.
void LinearDecodeLora(benchmark::State& state) {
  const auto n = static_cast<size_t>(state.range(0));
  RunLinear(state, Phase::kDecode, n, n, nullptr, TheWorld().adapters);
}
BENCHMARK(LinearDecodeLora)->Arg(1)->Arg(4)->Arg(8)->Arg(16);

void LinearPrefillBase(benchmark::State& state) {
  RunLinear(state, Phase::kPrefill, static_cast<size_t>(state.range(0)), 0);
}
BENCHMARK(LinearPrefillBase)->Arg(16)->Arg(64)->Arg(128)->Arg(256);

void LinearPrefillVariant(benchmark::State& state) {
  RunLinear(state, Phase::kPrefill, static_cast<size_t>(state.range(0)), 1);
}
BENCHMARK(LinearPrefillVariant)->Arg(4)->Arg(8)->Arg(12)->Arg(16)->Arg(64)->Arg(128)->Arg(256);

void LinearPrefillLora(benchmark::State& state) {
  RunLinear(state, Phase::kPrefill, static_cast<size_t>(state.range(0)), 0, &TheWorld().adapters[0]);
}
BENCHMARK(LinearPrefillLora)->Arg(256);

void PackBaseWeight(benchmark::State& state) {
  World& world = TheWorld();
  for (auto _ : state) benchmark::DoNotOptimize(PackWeight(world.context, world.weight));
  Report(state, {.bytes = static_cast<double>(world.weight.bytes.size()), .flops = 0});
}
BENCHMARK(PackBaseWeight);

void PackSignPlane(benchmark::State& state) {
  World& world = TheWorld();
  for (auto _ : state) benchmark::DoNotOptimize(PackDelta(world.context, world.stored));
  Report(state, {.bytes = static_cast<double>(kSize * kSize / 8), .flops = 0});
}
BENCHMARK(PackSignPlane);

}  // namespace
}  // namespace df::kernels
