// What a decode step of a 0.6B model spends outside its matrices: layers of that shape at 512 tokens of context,
// against the same Linear calls alone, in turns; and one token sampled from a vocabulary of 151 936. The head is left
// out.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/float16.h"
#include "base/rng.h"
#include "kernels/sample.h"
#include "model/kv_pool.h"
#include "model/layer.h"

namespace df {
namespace {

constexpr size_t kModelLayers = 28;
constexpr size_t kBenchLayers = 6;  // 189 MB of weights: more than the last cache
constexpr size_t kVocab = 151'936;

ModelConfig Config() {
  ModelConfig config;
  config.d_model = 1024;
  config.n_layers = kBenchLayers;
  config.n_heads = 16;
  config.n_kv_heads = 8;
  config.head_dim = 128;
  config.d_ff = 3072;
  config.qk_norm = true;
  config.window.assign(kBenchLayers, 0);
  return config;
}

// Weights that keep activations of order one.
kernels::LinearWeight RandomWeight(KernelContext& context, size_t d_out, size_t d_in) {
  std::vector<Bf16> values(d_out * d_in);
  for (size_t i = 0; i < values.size(); ++i) values[i] = ToBf16(static_cast<float>(RandomUnit(1, i) * 0.1 - 0.05));
  const Bytes bytes(reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(Bf16));
  return {.weight = kernels::PackWeight(context, {.dtype = DType::kBf16, .shape = {d_out, d_in}, .bytes = bytes}),
          .bias = {}};
}

BaseWeights RandomBase(KernelContext& context) {
  BaseWeights base;
  base.config = Config();
  const size_t d_q = 2048, d_kv = 1024, d_model = base.config.d_model, d_ff = base.config.d_ff;
  for (size_t layer = 0; layer < kBenchLayers; ++layer) {
    LayerWeights weights;
    const std::pair<size_t, size_t> shapes[kLinearSlots] = {{d_q, d_model}, {d_kv, d_model}, {d_kv, d_model},
                                                            {d_model, d_q}, {d_ff, d_model}, {d_ff, d_model},
                                                            {d_model, d_ff}};
    for (size_t i = 0; i < kLinearSlots; ++i) {
      weights.linear[i] = RandomWeight(context, shapes[i].first, shapes[i].second);
    }
    for (size_t i = 0; i < kNormSlots; ++i) {
      weights.norm[i] = Buffer<float>(i < 2 ? d_model : base.config.head_dim);
      std::fill_n(weights.norm[i].data(), weights.norm[i].size(), 1.0F);
    }
    base.layers.push_back(std::move(weights));
  }
  return base;
}

// A batch of sequences with one token each, all at the same position.
struct DecodeStep {
  KernelContext context;
  BaseWeights base;
  KvPool kv;
  std::vector<int32_t> blocks;
  StepRows rows;
  std::vector<Mat<float>> memory;
  Activations act;

  DecodeStep(size_t n_threads, size_t n_sequences, size_t position)
      : context(n_threads),
        base(RandomBase(context)),
        kv(base.config, {.dtype = DType::kBf16, .n_blocks = n_sequences * (position / 16 + 1)}) {
    const size_t n_blocks = position / 16 + 1;
    for (size_t i = 0; i < n_sequences * n_blocks; ++i) blocks.push_back(static_cast<int32_t>(i));
    rows.groups = {{.begin = 0, .end = n_sequences, .phase = kernels::Phase::kDecode}};
    for (size_t i = 0; i < n_sequences; ++i) {
      rows.sequences.push_back({i, i + 1, kernels::Phase::kDecode, position, blocks.data() + i * n_blocks});
    }
    const size_t widths[] = {1024, 1024, 2048, 1024, 1024, 2048, 1024, 3072, 3072, 64, 64};
    for (const size_t width : widths) memory.emplace_back(n_sequences, width);
    act = {.x = memory[0].view(),
           .normed = memory[1].view(),
           .q = memory[2].view(),
           .k = memory[3].view(),
           .v = memory[4].view(),
           .attended = memory[5].view(),
           .projected = memory[6].view(),
           .gate = memory[7].view(),
           .up = memory[8].view(),
           .cos = memory[9].view(),
           .sin = memory[10].view()};
    for (size_t i = 0; i < n_sequences * 1024; ++i) act.x.data[i] = static_cast<float>(RandomUnit(2, i) - 0.5);
    for (size_t i = 0; i < n_sequences * 64; ++i) act.cos.data[i] = 1.0F;
  }

  void Layers() {
    for (size_t layer = 0; layer < kBenchLayers; ++layer) {
      DecoderLayer(context, base, layer, rows, act, kv.Layer(layer));
    }
  }

  void MatricesAlone() {
    const kernels::LinearSegment all = {.begin = 0, .end = act.x.rows, .phase = kernels::Phase::kDecode};
    const std::pair<MatView<const float>, MatView<float>> io[kLinearSlots] = {
        {act.normed, act.q},    {act.normed, act.k},  {act.normed, act.v},      {act.attended, act.projected},
        {act.normed, act.gate}, {act.normed, act.up}, {act.gate, act.projected}};
    for (size_t layer = 0; layer < kBenchLayers; ++layer) {
      for (size_t i = 0; i < kLinearSlots; ++i) {
        kernels::Linear(context, base.layers[layer].linear[i], {&all, 1}, io[i].first, io[i].second);
      }
    }
  }
};

double MedianUs(std::vector<double>& values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

void RunDecodeStep(benchmark::State& state) {
  const auto n_sequences = static_cast<size_t>(state.range(1));
  DecodeStep step(static_cast<size_t>(state.range(0)), n_sequences, static_cast<size_t>(state.range(2)) - 1);
  Mat<float> logits(n_sequences, kVocab);
  for (size_t i = 0; i < n_sequences * kVocab; ++i) logits.Row(0)[i] = static_cast<float>(RandomUnit(3, i) * 20);
  std::vector<kernels::SampleRow> draws;
  draws.reserve(n_sequences);
  for (size_t i = 0; i < n_sequences; ++i) draws.push_back({.row = i, .vocab = kVocab});
  std::vector<kernels::Sampled> sampled(n_sequences);
  const SteadyClock clock;
  const auto time_us = [&](const auto& body) {
    const int64_t start = clock.NowUs();
    body();
    return static_cast<double>(clock.NowUs() - start);
  };
  std::vector<double> layers, matrices, sampling;
  for (auto _ : state) {
    layers.push_back(time_us([&] { step.Layers(); }));
    matrices.push_back(time_us([&] { step.MatricesAlone(); }));
    sampling.push_back(time_us([&] { kernels::Sample(step.context, logits.view(), draws, sampled); }));
  }
  const double scale = static_cast<double>(kModelLayers) / kBenchLayers;
  const double layers_us = MedianUs(layers) * scale;
  const double matrices_us = MedianUs(matrices) * scale;
  const double sampling_us = MedianUs(sampling);
  state.counters["layers_us"] = layers_us;
  state.counters["matrices_us"] = matrices_us;
  state.counters["sampling_us"] = sampling_us;
  state.counters["non_matrix_share"] = (layers_us - matrices_us + sampling_us) / (layers_us + sampling_us);
}
BENCHMARK(RunDecodeStep)
    ->Name("decode_step_0.6b")
    ->ArgNames({"threads", "sequences", "context"})
    ->Args({1, 1, 512})
    ->Args({2, 1, 512})
    ->Args({1, 8, 512})
    ->Args({2, 8, 512})
    ->Args({2, 1, 2048})
    ->Iterations(60)
    ->UseRealTime();

}  // namespace
}  // namespace df
