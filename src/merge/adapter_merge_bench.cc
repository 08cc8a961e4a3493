// Adapters of rank 32 on all projections of a 1B-shaped model (16 layers, d_model 2048, d_ff 8192): 22.5 million
// factors.
#include <benchmark/benchmark.h>

#include <filesystem>

#include "base/rng.h"
#include "merge/adapter_merge.h"
#include "merge/adapter_pool.h"
#include "merge/adapter_similarity.h"
#include "merge/adapter_writer.h"

namespace df {
namespace {

constexpr size_t kLayers = 16, kRank = 32, kThreads = 2;

AdapterFactors Made(uint64_t seed) {
  AdapterFactors factors{.modules = {}, .dtype = DType::kBf16};
  const std::vector<std::pair<std::string, std::pair<size_t, size_t>>> shapes = {
      {"self_attn.q_proj", {2048, 2048}}, {"self_attn.k_proj", {512, 2048}}, {"self_attn.v_proj", {512, 2048}},
      {"self_attn.o_proj", {2048, 2048}}, {"mlp.gate_proj", {8192, 2048}},   {"mlp.up_proj", {8192, 2048}},
      {"mlp.down_proj", {2048, 8192}}};
  uint64_t draw = 0;
  for (size_t layer = 0; layer < kLayers; ++layer) {
    for (const auto& [name, shape] : shapes) {
      FactorPair& pair = factors.modules["model.layers." + std::to_string(layer) + "." + name];
      pair.b = Mat<float>(shape.first, kRank);
      pair.a = Mat<float>(kRank, shape.second);
      for (Mat<float>* part : {&pair.b, &pair.a}) {
        for (size_t i = 0; i < part->rows() * part->cols(); ++i) {
          part->view().data[i] = static_cast<float>(RandomUnit(seed, draw++)) - 0.5F;
        }
      }
      pair.squared_norm = SquaredNormOf(pair);
    }
  }
  return factors;
}

void BM_Similarity(benchmark::State& state) {
  ThreadPool pool(kThreads);
  const AdapterFactors first = Made(1), second = Made(2);
  for (auto _ : state) benchmark::DoNotOptimize(Similarity(pool, first, second));
}
BENCHMARK(BM_Similarity)->Unit(benchmark::kMillisecond)->UseRealTime();

void BM_MergeAdapter(benchmark::State& state) {
  ThreadPool pool(kThreads);
  const AdapterFactors first = Made(1), second = Made(2);
  for (auto _ : state) {
    const auto merge = MergeAdapter(pool, first, {}, second, {.dtype = DType::kBf16});
    if (!merge.ok()) state.SkipWithError(merge.status().message().c_str());
  }
}
BENCHMARK(BM_MergeAdapter)->Unit(benchmark::kMillisecond)->UseRealTime();

// From a directory into a full pool of eight slots, on disk: reading, digests, eight similarities, the merge, writing.
void BM_AddToAPoolOfEight(benchmark::State& state) {
  ThreadPool threads(kThreads);
  const std::string home = std::filesystem::temp_directory_path() / "deltafold-pool-bench";
  std::filesystem::remove_all(home);
  uint64_t bytes = 0;
  for (uint64_t seed = 0; seed < 9; ++seed) {
    const AdapterFactors factors = Made(seed);
    bytes = TensorBytes(factors);
    const std::string path = home + "/" + std::to_string(seed);
    std::filesystem::create_directories(path);
    if (!WriteAdapter(factors, "made", path).ok()) state.SkipWithError("cannot write");
  }
  auto pool = AdapterPool::Create(home + "/pool", {.budget_bytes = 8 * bytes});
  for (uint64_t seed = 0; pool.ok() && seed < 8; ++seed) {
    const std::string id = std::to_string(seed);
    if (!(*pool)->Add(threads, id, home + "/" + id).ok()) state.SkipWithError("cannot add");
  }
  size_t n = 8;
  for (auto _ : state) {
    const auto added = (*pool)->Add(threads, std::to_string(n++), home + "/8");
    if (!added.ok()) state.SkipWithError(added.status().message().c_str());
  }
  std::filesystem::remove_all(home);
}
BENCHMARK(BM_AddToAPoolOfEight)->Unit(benchmark::kMillisecond)->UseRealTime()->Iterations(5);

}  // namespace
}  // namespace df
