#include "model/layer.h"

#include <cmath>

#include "kernels/activation.h"
#include "kernels/cost_attention.h"
#include "kernels/rope.h"

namespace df {
namespace {

// The layer's weights as seen by each group of rows: the base's, with the group's variant laid over them.
struct LayerView {
  KernelContext& context;
  const BaseWeights& base;
  size_t layer;
  StepRows& rows;

  void Project(LinearSlot slot, MatView<const float> x, MatView<float> y) const {
    const auto i = static_cast<size_t>(slot);
    if (rows.observer) (*rows.observer)(slot, x);
    rows.linear.clear();
    for (const RowGroup& group : rows.groups) {
      const kernels::PackedDelta* delta = group.variant ? &group.variant->layers[layer].linear[i] : nullptr;
      rows.linear.push_back({group.begin, group.end, group.phase, delta && !delta->IsBase() ? delta : nullptr});
    }
    kernels::Linear(context, base.layers[layer].linear[i], rows.linear, x, y);
    rows.cost += kernels::LinearCost(context.options, base.layers[layer].linear[i], rows.linear);
  }

  std::span<const kernels::NormSegment> Norm(NormSlot slot) const {
    const auto i = static_cast<size_t>(slot);
    rows.norm.clear();
    for (const RowGroup& group : rows.groups) {
      const bool own = group.variant && !group.variant->layers[layer].norm[i].empty();
      const Buffer<float>& weight = own ? group.variant->layers[layer].norm[i] : base.layers[layer].norm[i];
      rows.norm.push_back({group.begin, group.end, weight.data()});
    }
    return rows.norm;
  }

  // Of the heads of q or k: none in most architectures.
  std::span<const kernels::NormSegment> HeadNorm(NormSlot slot) const {
    if (!base.config.qk_norm) return {};
    return Norm(slot);
  }
};

kernels::Cost AttentionCost(const StepRows& rows, const kernels::KvLayerView& kv,
                            const kernels::AttentionOptions& options) {
  const kernels::AttentionCost cost = kernels::CostOfAttention(rows.sequences, kv, options);
  return {.bytes = cost.bytes + kernels::BytesOfWriteKv(rows.sequences, kv), .flops = cost.flops};
}

}  // namespace

void DecoderLayer(KernelContext& context, const BaseWeights& base, size_t layer, StepRows& rows, const Activations& act,
                  const kernels::KvLayerView& kv) {
  const ModelConfig& config = base.config;
  const auto eps = static_cast<float>(config.rms_eps);
  const LayerView weights{context, base, layer, rows};

  kernels::RmsNorm(context, weights.Norm(NormSlot::kAttention), eps, act.x, act.normed);
  weights.Project(LinearSlot::kQ, act.normed, act.q);
  weights.Project(LinearSlot::kK, act.normed, act.k);
  weights.Project(LinearSlot::kV, act.normed, act.v);
  kernels::RotateHeads(context, {act.cos, act.sin, weights.HeadNorm(NormSlot::kQuery), eps}, act.q);
  kernels::RotateHeads(context, {act.cos, act.sin, weights.HeadNorm(NormSlot::kKey), eps}, act.k);
  kernels::WriteKv(context, rows.sequences, act.k, act.v, kv);
  const kernels::AttentionOptions attention = {.n_heads = config.n_heads,
                                               .scale = 1.0F / std::sqrt(static_cast<float>(config.head_dim)),
                                               .window = config.window[layer]};
  kernels::Attention(context, rows.sequences, act.q, kv, attention, act.attended);
  rows.cost += AttentionCost(rows, kv, attention);
  weights.Project(LinearSlot::kO, act.attended, act.projected);

  kernels::AddRmsNorm(context, weights.Norm(NormSlot::kFeedForward), eps, act.projected, act.x, act.normed);
  weights.Project(LinearSlot::kGate, act.normed, act.gate);
  weights.Project(LinearSlot::kUp, act.normed, act.up);
  kernels::SiluMul(context, act.gate, act.up, act.gate);
  weights.Project(LinearSlot::kDown, act.gate, act.projected);
  kernels::AddTo(context, act.projected, act.x);
}

}  // namespace df
