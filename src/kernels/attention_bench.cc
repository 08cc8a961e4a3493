// Attention at the sizes of a 0.6B model (16 heads over 8 key heads of 128): share of the read bandwidth in decode, of
// the multiply-add peak in prefill, both measured in the same run. Decode rotates over more memory than the cache
// holds.
#include <benchmark/benchmark.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/cost_attention.h"
#include "kernels/machine_limits.h"
#include "kernels/norm.h"
#include "kernels/sample.h"
#include "kernels/target.h"

namespace df::kernels {
namespace {

constexpr size_t kHeads = 16;
constexpr size_t kKvHeads = 8;
constexpr size_t kHeadDim = 128;

const MachineLimits& Limits(const std::string& target, size_t n_threads) {
  static std::map<std::pair<std::string, size_t>, MachineLimits> measured;
  const auto key = std::pair(target, n_threads);
  if (!measured.contains(key)) {
    KernelContext context(n_threads);
    measured[key] = MeasureMachineLimits(context);
  }
  return measured[key];
}

void FillRandom(float* to, size_t n) {
  for (size_t i = 0; i < n; ++i) to[i] = static_cast<float>(RandomUnit(1, i) - 0.5);
}

// Keys and values of `n_layers` layers with room for n_tokens of one sequence.
struct Cache {
  Buffer<uint8_t> keys, values;
  std::vector<int32_t> blocks;
  size_t layer_bytes = 0;
  DType dtype;

  Cache(DType type, size_t n_tokens, size_t n_layers) : dtype(type) {
    const size_t n_blocks = (n_tokens + kKvBlockTokens - 1) / kKvBlockTokens;
    layer_bytes = n_blocks * kKvHeads * kKvBlockTokens * kHeadDim * DTypeBytes(type);
    keys = Buffer<uint8_t>(n_layers * layer_bytes);
    values = Buffer<uint8_t>(n_layers * layer_bytes);
    for (size_t i = 0; i < n_blocks; ++i) blocks.push_back(static_cast<int32_t>((i * 7) % n_blocks));
    if (n_blocks % 7 == 0) {
      for (size_t i = 0; i < n_blocks; ++i) blocks[i] = static_cast<int32_t>(i);
    }
    KernelContext context(1);
    Mat<float> rows(n_tokens, kKvHeads * kHeadDim);
    FillRandom(rows.Row(0), n_tokens * kKvHeads * kHeadDim);
    const SequenceSegment all = {.begin = 0, .end = n_tokens, .block_table = blocks.data()};
    for (size_t layer = 0; layer < n_layers; ++layer)
      WriteKv(context, {&all, 1}, rows.view(), rows.view(), View(layer));
  }

  KvLayerView View(size_t layer) {
    return {.dtype = dtype,
            .keys = keys.data() + layer * layer_bytes,
            .values = values.data() + layer * layer_bytes,
            .n_kv_heads = kKvHeads,
            .head_dim = kHeadDim};
  }
};

struct Case {
  std::string target;
  size_t n_threads = 1;
  DType dtype = DType::kBf16;
  size_t position = 0;
  size_t n_queries = 1;
  size_t n_layers = 1;  // rotated over
};

void RunAttention(benchmark::State& state, const Case& c) {
  if (!SetTarget(c.target).ok()) return state.SkipWithError("no such target here");
  const MachineLimits& limits = Limits(c.target, c.n_threads);
  KernelContext context(c.n_threads);
  Cache cache(c.dtype, c.position + c.n_queries, c.n_layers);
  Mat<float> q(c.n_queries, kHeads * kHeadDim), out(c.n_queries, kHeads * kHeadDim);
  FillRandom(q.Row(0), c.n_queries * kHeads * kHeadDim);
  const SequenceSegment segment = {
      .begin = 0, .end = c.n_queries, .position = c.position, .block_table = cache.blocks.data()};
  const AttentionOptions options = {.n_heads = kHeads, .scale = 0.088388F};
  size_t layer = 0;
  for (auto _ : state) {
    Attention(context, {&segment, 1}, q.view(), cache.View(layer), options, out.view());
    layer = (layer + 1) % c.n_layers;
  }
  const AttentionCost cost = CostOfAttention({&segment, 1}, cache.View(0), options);
  using benchmark::Counter;
  // Counters are per CPU second of the process: all threads together are n_threads times that.
  constexpr auto kRate = Counter::kIsIterationInvariantRate;
  const auto n = static_cast<double>(c.n_threads);
  state.counters["GB/s"] = Counter(n * cost.bytes * 1e-9, kRate);
  state.counters["GFLOP/s"] = Counter(n * cost.flops * 1e-9, kRate);
  state.counters["read_share"] = Counter(n * cost.bytes / limits.read_bytes_per_second, kRate);
  state.counters["fma_share"] = Counter(n * cost.flops / limits.flops_per_second, kRate);
}

void RunVector(benchmark::State& state, const std::string& target, void (*body)(KernelContext&, Mat<float>&)) {
  if (!SetTarget(target).ok()) return state.SkipWithError("no such target here");
  KernelContext context(1);
  Mat<float> x(4, 151'936);
  FillRandom(x.Row(0), 4 * 151'936);
  for (auto _ : state) body(context, x);
}

void NormRow(KernelContext& context, Mat<float>& x) {
  const NormSegment segment = {.begin = 0, .end = 1, .weight = x.Row(1)};
  RmsNorm(context, {&segment, 1}, 1e-6F, {x.Row(0), 1, 1024}, {x.Row(2), 1, 1024});
}

void SiluRow(KernelContext& context, Mat<float>& x) {
  SiluMul(context, {x.Row(0), 1, 3072}, {x.Row(1), 1, 3072}, {x.Row(2), 1, 3072});
}

template <int kTopK, int kTopPercent, int kTemperaturePercent>
void SampleRow1(KernelContext& context, Mat<float>& x) {
  static uint64_t draw = 0;
  const SampleRow row = {.row = 0,
                         .vocab = x.cols(),
                         .temperature = kTemperaturePercent / 100.0F,
                         .top_k = kTopK,
                         .top_p = kTopPercent / 100.0F,
                         .seed = 1,
                         .draw = ++draw};
  Sampled result;
  Sample(context, x.Rows(0, 1), {&row, 1}, {&result, 1});
  benchmark::DoNotOptimize(result);
}

void Register(const std::string& name, const Case& c) {
  const std::string full =
      name + "/" + c.target + "/" + std::string(DTypeName(c.dtype)) + "/threads:" + std::to_string(c.n_threads);
  benchmark::RegisterBenchmark(full.c_str(), [c](benchmark::State& state) {
    RunAttention(state, c);
  })->MeasureProcessCPUTime();
}

// Rotated over 256 layers of 512 tokens: 537 MB in bf16, 1074 MB in f32.
const bool registered = [] {
  for (const std::string& target : AvailableTargets()) {
    if (target == "scalar") continue;
    for (const size_t threads : {1U, 2U}) {
      for (const DType dtype : {DType::kBf16, DType::kF32}) {
        const Case base = {.target = target, .n_threads = threads, .dtype = dtype};
        Case decode = base;
        decode.position = 511;
        Register("decode_512_hot", decode);
        decode.position = 63;
        Register("decode_64_hot", decode);
        decode.position = 511;
        decode.n_layers = 256;
        Register("decode_512_cold", decode);
        Case prefill = base;
        prefill.n_queries = 512;
        Register("prefill_512", prefill);
        prefill.position = 8192;
        Register("prefill_512_at_8192", prefill);
      }
    }
    const auto add = [&](const char* name, void (*body)(KernelContext&, Mat<float>&)) {
      benchmark::RegisterBenchmark((std::string(name) + "/" + target).c_str(),
                                   [=](benchmark::State& state) { RunVector(state, target, body); });
    };
    add("rms_norm_1024", NormRow);
    add("silu_mul_3072", SiluRow);
    add("sample_greedy_151936", SampleRow1<0, 100, 0>);
    add("sample_plain_151936", SampleRow1<0, 100, 10>);
    add("sample_top_k_50_151936", SampleRow1<50, 100, 10>);
    add("sample_top_p_0.95_151936", SampleRow1<0, 95, 10>);
    add("sample_top_p_0.95_flat_151936", SampleRow1<0, 95, 100>);
  }
  return true;
}();

}  // namespace
}  // namespace df::kernels
