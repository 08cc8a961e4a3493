#include "tools/step_rows.h"

#include <algorithm>
#include <cstring>

#include "base/rng.h"
#include "engine/batch.h"
#include "engine/scheduler.h"
#include "kernels/limits.h"
#include "kernels/sample.h"
#include "model/decoder.h"

namespace df::tools {
namespace {

constexpr size_t kContextTokens = 512;

// The engine's step without its queues: one sequence that decodes on and on.
class DecodeStep {
 public:
  DecodeStep(KernelContext& context, const std::shared_ptr<const BaseWeights>& base, size_t max_steps)
      : context_(context),
        kv_(base->config, {.dtype = DType::kBf16, .n_blocks = KvBlocksFor(kContextTokens + max_steps + 1)}),
        decoder_(base),
        blocks_(kv_.n_blocks()),
        scheduler_({}, blocks_) {
    TouchKv(base->config.n_layers);
    GenerationRequest request;
    request.id = "bench";
    request.prompt.assign(kContextTokens, 1);
    request.params.ignore_eos = true;
    request.events = std::make_shared<EventQueue>();
    const RequestLimits limits = {.context_tokens = kContextTokens + max_steps + 1, .vocab = base->config.vocab};
    auto sequence = MakeSequence(std::move(request), limits, 0, blocks_);
    sequence->n_cached = kContextTokens - 1;  // as if the prompt had been prefilled
    scheduler_.Enqueue(std::move(sequence));
    Run();  // the last prompt token; from here on every step decodes
  }

  void Run() {
    const std::span<const Piece> pieces = scheduler_.PlanStep(0);
    BuildStep(pieces, decoder_.base().config.vocab, step_);
    const MatView<const float> logits = decoder_.Step(context_, step_.batch, kv_);
    kernels::Sample(context_, logits, step_.sample_rows, step_.sampled);
    for (const Piece& piece : pieces) piece.sequence->n_cached += piece.n_rows;
    Sequence& sequence = *step_.sampling.front();
    sequence.request.events->Push(AppendToken(sequence, step_.sampled.front().token, 0));
  }

 private:
  // Memory that was never written reads from the one zero page, which is in the cache.
  void TouchKv(size_t n_layers) {
    const size_t layer_bytes = kv_.bytes() / 2 / n_layers;
    for (size_t layer = 0; layer < n_layers; ++layer) {
      const kernels::KvLayerView view = kv_.Layer(layer);
      std::memset(view.keys, 0x3C, layer_bytes);
      std::memset(view.values, 0x3C, layer_bytes);
    }
  }

  KernelContext& context_;
  KvPool kv_;
  Decoder decoder_;
  KvBlocks blocks_;
  Scheduler scheduler_;
  StepBatch step_;
};

// The products of one row with every matrix of the model.
class Matrices {
 public:
  Matrices(KernelContext& context, const BaseWeights& base) : context_(context), base_(base) {
    const ModelConfig& config = base.config;
    x_ = Mat<float>(1, std::max({config.d_model, config.d_ff, config.n_heads * config.head_dim}));
    y_ = Mat<float>(1, std::max({config.vocab, config.d_ff, config.n_heads * config.head_dim, config.d_model}));
    for (size_t i = 0; i < x_.cols(); ++i) x_.Row(0)[i] = static_cast<float>(2 * RandomUnit(3, i) - 1);
  }

  Bytes HeadTiles() const {
    const Bytes tiles = base_.HeadWeight().weight.tiles.span();
    return tiles.first(tiles.size() / 256 * 256);
  }

  void Run() {
    for (const LayerWeights& layer : base_.layers) {
      for (const kernels::LinearWeight& linear : layer.linear) Multiply(linear);
    }
    Multiply(base_.HeadWeight());
  }

  kernels::Cost Cost() const {
    kernels::Cost cost;
    for (const LayerWeights& layer : base_.layers) {
      for (const kernels::LinearWeight& linear : layer.linear) cost += CostOf(linear);
    }
    cost += CostOf(base_.HeadWeight());
    return cost;
  }

 private:
  static constexpr kernels::LinearSegment kOneRow = {.begin = 0, .end = 1};

  kernels::Cost CostOf(const kernels::LinearWeight& linear) const {
    return kernels::LinearCost(context_.options, linear, {&kOneRow, 1});
  }
  void Multiply(const kernels::LinearWeight& linear) {
    kernels::Linear(context_, linear, {&kOneRow, 1}, MatView<const float>(x_.Row(0), 1, linear.weight.d_in),
                    MatView<float>(y_.Row(0), 1, linear.weight.d_out));
  }

  KernelContext& context_;
  const BaseWeights& base_;
  Mat<float> x_, y_;
};

void ReadAll(KernelContext& context, Bytes memory) {
  const volatile uint64_t digest = kernels::ReadMemory(context, memory);
  (void)digest;
}

}  // namespace

std::vector<RowResult> MeasureStepRows(KernelContext& context, const std::shared_ptr<const BaseWeights>& base,
                                       const std::string& shape, const RowSelection& selection, size_t n_rounds) {
  DecodeStep step(context, base, n_rounds + 2);
  Matrices matrices(context, *base);
  RowSet rows(shape, context.pool.n_threads());
  const RowSet::Operation whole = rows.Add([&] { step.Run(); });
  const RowSet::Operation products = rows.Add([&] { matrices.Run(); });
  const Bytes read = matrices.HeadTiles();
  rows.SetReading(rows.Add([&] { ReadAll(context, read); }), static_cast<double>(read.size()));
  rows.AddRow({.name = "non_matrix_share",
               .subject = whole,
               .cost = matrices.Cost(),
               .others = {products},
               .sample = [=](const RowSet::Times& times) { return 1 - times(products) / times(whole); }});
  return rows.Measure(selection, n_rounds);
}

}  // namespace df::tools
