#include "model/decoder.h"

#include <algorithm>
#include <array>

#include "kernels/embed.h"
#include "kernels/rope.h"
#include "kernels/rows.h"
#include "model/layer.h"

namespace df {
namespace {

// Null where the variant leaves this matrix as the base has it, so that such rows join the base's.
const kernels::PackedDelta* ChangeOrNull(const kernels::PackedDelta& delta, const kernels::LinearWeight& base) {
  return delta.IsBase() && delta.d_out == base.weight.d_out ? nullptr : &delta;
}

}  // namespace

struct Decoder::Memory {
  // A matrix that keeps its largest size.
  struct Grown {
    Mat<float> mat;
    MatView<float> View(size_t n_rows, size_t n_cols) {
      if (mat.rows() < n_rows || mat.cols() < n_cols) {
        const size_t max_rows = std::max(mat.rows(), n_rows);
        const size_t max_cols = std::max(mat.cols(), n_cols);
        mat = Mat<float>();  // first give back, then take
        mat = Mat<float>(max_rows, max_cols);
      }
      return {mat.view().data, n_rows, n_cols};
    }
  };

  Grown x, normed, q, k, v, attended, projected, gate, up, cos, sin;
  Grown last;    // [n_logit_rows, d_model] rows of x whose logits are wanted
  Grown logits;  // [n_logit_rows, vocab] as large as the most rows asked for at once
  Activations act;
  StepRows rows;
  std::vector<RowGroup> head_groups;       // groups over the rows of `last`
  std::vector<int32_t> positions;          // [n_tokens]
  std::vector<kernels::RopeSegment> rope;  // [groups]

  std::array<const Grown*, 13> All() const {
    return {&x, &normed, &q, &k, &v, &attended, &projected, &gate, &up, &cos, &sin, &last, &logits};
  }

  void Resize(const ModelConfig& config, size_t n_tokens) {
    const size_t d_q = config.n_heads * config.head_dim;
    const size_t d_kv = config.n_kv_heads * config.head_dim;
    act = {.x = x.View(n_tokens, config.d_model),
           .normed = normed.View(n_tokens, config.d_model),
           .q = q.View(n_tokens, d_q),
           .k = k.View(n_tokens, d_kv),
           .v = v.View(n_tokens, d_kv),
           .attended = attended.View(n_tokens, d_q),
           .projected = projected.View(n_tokens, config.d_model),
           .gate = gate.View(n_tokens, config.d_ff),
           .up = up.View(n_tokens, config.d_ff),
           .cos = cos.View(n_tokens, config.head_dim / 2),
           .sin = sin.View(n_tokens, config.head_dim / 2)};
  }
};

Decoder::Decoder(std::shared_ptr<const BaseWeights> base)
    : base_(std::move(base)), memory_(std::make_unique<Memory>()) {}

Decoder::~Decoder() = default;

size_t Decoder::activation_bytes() const {
  size_t bytes = 0;
  for (const Memory::Grown* grown : memory_->All()) bytes += grown->mat.size_bytes();
  return bytes;
}

kernels::Cost Decoder::step_cost() const { return memory_->rows.cost; }

const float* Decoder::FinalNorm(const RowGroup& group) const {
  const bool own = group.variant && !group.variant->final_norm.empty();
  return own ? group.variant->final_norm.data() : base_->final_norm.data();
}

void Decoder::Begin(KernelContext& context, const Batch& batch) {
  memory_->Resize(base_->config, batch.tokens.size());
  memory_->rows.cost = {};
  DivideRows(batch);
  Embed(context, batch);
}

void Decoder::RunLayer(KernelContext& context, size_t layer, const kernels::KvLayerView& kv,
                       const InputObserver& observer) {
  memory_->rows.observer = observer ? &observer : nullptr;
  DecoderLayer(context, *base_, layer, memory_->rows, memory_->act, kv);
  memory_->rows.observer = nullptr;
}

MatView<const float> Decoder::NormOutputs(KernelContext& context) {
  Memory& m = *memory_;
  m.rows.norm.clear();
  for (const RowGroup& group : m.rows.groups) m.rows.norm.push_back({group.begin, group.end, FinalNorm(group)});
  kernels::RmsNorm(context, m.rows.norm, static_cast<float>(base_->config.rms_eps), m.act.x, m.act.normed);
  return m.act.normed;
}

MatView<float> Decoder::Step(KernelContext& context, const Batch& batch, KvPool& kv) {
  Forward(context, batch, kv);
  return Logits(context, batch.logit_rows);
}

void Decoder::Forward(KernelContext& context, const Batch& batch, KvPool& kv) {
  Begin(context, batch);
  for (size_t layer = 0; layer < base_->config.n_layers; ++layer) {
    DecoderLayer(context, *base_, layer, memory_->rows, memory_->act, kv.Layer(layer));
  }
}

void Decoder::DivideRows(const Batch& batch) {
  Memory& m = *memory_;
  m.rows.groups.clear();
  m.rows.sequences.clear();
  m.positions.clear();
  for (const BatchSegment& segment : batch.segments) {
    m.rows.sequences.push_back({segment.begin, segment.end, segment.phase, segment.position, segment.block_table});
    for (size_t i = 0; i < segment.end - segment.begin; ++i) {
      m.positions.push_back(static_cast<int32_t>(segment.position + i));
    }
    std::vector<RowGroup>& groups = m.rows.groups;
    if (!groups.empty() && groups.back().variant == segment.variant && groups.back().phase == segment.phase) {
      groups.back().end = segment.end;
    } else {
      groups.push_back({segment.begin, segment.end, segment.phase, segment.variant});
    }
  }
  DF_CHECK(m.positions.size() == batch.tokens.size());
}

void Decoder::Embed(KernelContext& context, const Batch& batch) {
  Memory& m = *memory_;
  m.rows.linear.clear();
  m.rope.clear();
  for (const RowGroup& group : m.rows.groups) {
    const VariantWeights* variant = group.variant;
    const RopeFrequencies& rope = variant && variant->rope ? *variant->rope : base_->rope;
    m.rope.push_back({group.begin, group.end, rope.inv_freq.data(), rope.magnitude});
    m.rows.linear.push_back(
        {group.begin, group.end, group.phase, variant ? ChangeOrNull(variant->embedding, base_->embedding) : nullptr});
  }
  kernels::Embed(context, base_->embedding.weight, m.rows.linear, batch.tokens, m.act.x);
  kernels::RopeAngles(context, m.rope, m.positions, m.act.cos, m.act.sin);
}

MatView<float> Decoder::Logits(KernelContext& context, std::span<const size_t> rows) {
  Memory& m = *memory_;
  const ModelConfig& config = base_->config;
  // The groups again, over the gathered rows only.
  m.head_groups.clear();
  size_t vocab = config.vocab;
  size_t row = 0;
  for (const RowGroup& group : m.rows.groups) {
    const size_t begin = row;
    while (row < rows.size() && rows[row] < group.end) ++row;
    if (begin < row) m.head_groups.push_back({begin, row, group.phase, group.variant});
    if (group.variant) vocab = std::max(vocab, group.variant->config.vocab);
  }
  const MatView<float> last = m.last.View(row, config.d_model);
  const MatView<float> logits = m.logits.View(row, vocab);
  kernels::GatherRows(context, m.act.x, rows, last);

  m.rows.norm.clear();
  for (const RowGroup& group : m.head_groups) m.rows.norm.push_back({group.begin, group.end, FinalNorm(group)});
  kernels::RmsNorm(context, m.rows.norm, static_cast<float>(config.rms_eps), last, last);

  // A variant may tie its head where the base does not: such rows read the embedding instead of the base's head.
  for (const bool on_embedding : {false, true}) {
    const kernels::LinearWeight& weight = on_embedding ? base_->embedding : base_->head;
    m.rows.linear.clear();
    for (const RowGroup& group : m.head_groups) {
      const bool reads_embedding = group.variant ? group.variant->head_on_embedding : base_->tied;
      if (reads_embedding != on_embedding) continue;
      m.rows.linear.push_back({group.begin, group.end, group.phase,
                               group.variant ? ChangeOrNull(group.variant->HeadDelta(), weight) : nullptr});
    }
    if (m.rows.linear.empty()) continue;
    kernels::Linear(context, weight, m.rows.linear, last, logits);
    m.rows.cost += kernels::LinearCost(context.options, weight, m.rows.linear);
  }
  return logits;
}

}  // namespace df
