// A variant from a PEFT adapter: every weight is what lies under it (the base, or a parent's delta) with the adapter's
// change on top.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "format/digest.h"
#include "format/peft_adapter.h"
#include "kernels/embed.h"
#include "kernels/row_norms.h"
#include "model/layer_names.h"
#include "model/weights.h"

namespace df {
namespace {

// One matrix of the base and the delta under the adapter.
struct Under {
  const kernels::LinearWeight& weight;
  const kernels::PackedDelta& delta;
};

Buffer<float> ToBuffer(const TensorView& view) {
  Buffer<float> values(view.elements());
  ReadFloats(view, 0, values.span());
  return values;
}

// Rows of `stored` that differ from the weight under it; rows that it does not have differ.
std::vector<int32_t> FindChangedRows(KernelContext& context, const Under& under, const TensorView& stored) {
  constexpr size_t kRows = 256;
  const size_t n_rows = stored.shape[0], d_in = stored.shape[1];
  const size_t n_shared = std::min(n_rows, under.delta.d_out);
  std::vector<int32_t> changed;
  std::vector<int32_t> tokens(kRows);
  Mat<float> have(kRows, d_in);
  std::vector<float> want(d_in);
  for (size_t first = 0; first < n_shared; first += kRows) {
    const size_t n = std::min(kRows, n_shared - first);
    std::iota(tokens.begin(), tokens.end(), static_cast<int32_t>(first));
    const kernels::LinearSegment segment = {.begin = 0, .end = n, .delta = &under.delta};
    kernels::Embed(context, under.weight.weight, {&segment, 1}, std::span(tokens).first(n), have.Rows(0, n));
    for (size_t i = 0; i < n; ++i) {
      ReadFloats(stored, (first + i) * d_in, want);
      if (!std::equal(want.begin(), want.end(), have.Row(i))) changed.push_back(tokens[i]);
    }
  }
  for (size_t row = n_shared; row < n_rows; ++row) changed.push_back(static_cast<int32_t>(row));
  return changed;
}

kernels::RowMajorWeight GatherRows(const TensorView& stored, const std::vector<int32_t>& index) {
  const size_t row_bytes = stored.shape[1] * DTypeBytes(stored.dtype);
  kernels::RowMajorWeight rows{.dtype = stored.dtype,
                               .n_rows = index.size(),
                               .d_in = stored.shape[1],
                               .values = Buffer<uint8_t>(index.size() * row_bytes)};
  for (size_t i = 0; i < index.size(); ++i) {
    std::memcpy(rows.values.data() + i * row_bytes, stored.bytes.data() + static_cast<size_t>(index[i]) * row_bytes,
                row_bytes);
  }
  return rows;
}

// Both, in f32; `over` wins.
kernels::PackedRows MergeRows(const kernels::PackedRows& under, const kernels::PackedRows& over) {
  kernels::PackedRows merged;
  std::ranges::set_union(over.index, under.index, std::back_inserter(merged.index));
  const size_t d_in = over.values.d_in;
  merged.values = {.dtype = DType::kF32,
                   .n_rows = merged.index.size(),
                   .d_in = d_in,
                   .values = Buffer<uint8_t>(merged.index.size() * d_in * sizeof(float))};
  auto* to = reinterpret_cast<float*>(merged.values.values.data());
  for (const int32_t row : merged.index) {
    const auto found = std::ranges::lower_bound(over.index, row);
    const bool is_over = found != over.index.end() && *found == row;
    const kernels::PackedRows& from = is_over ? over : under;
    const auto i = std::ranges::lower_bound(from.index, row) - from.index.begin();
    from.values.ReadRow(static_cast<size_t>(i), to);
    to += d_in;
  }
  return merged;
}

// Lays the changes of one module over what is under it.
class Overlay {
 public:
  Overlay(KernelContext& context, const Under& under) : context_(context), under_(under) {}

  Result<kernels::PackedDelta> Apply(const ModuleChange& change) {
    delta_ = kernels::Borrow(under_.delta);
    delta_.d_out = change.weight.d_out;
    if (change.weight.raw) ReplaceWeight(*change.weight.raw);
    if (change.weight.rows) {
      DF_RETURN_IF_ERROR(ReplaceRows(
          {.index = change.weight.rows->index, .values = kernels::PackRowMajor(change.weight.rows->values)}));
    }
    AddLowRank(change.weight);
    SetBias(change);
    if (change.weight.magnitude) DF_RETURN_IF_ERROR(SetGain(*change.weight.magnitude));
    return std::move(delta_);
  }

 private:
  // A stored matrix that is mostly the one under it (PEFT stores copies of embedding and head) costs its other rows.
  void ReplaceWeight(const TensorView& stored) {
    std::vector<int32_t> changed = FindChangedRows(context_, under_, stored);
    const bool resizes = stored.shape[0] != under_.delta.d_out;
    if (changed.empty() && !resizes) return;
    // Signs, factors and raw matrices have the rows that they have.
    const bool has_rows_only = delta_.planes.empty() && delta_.low_rank.empty() && !delta_.raw;
    const bool keeps = resizes ? has_rows_only && stored.shape[0] > under_.delta.d_out : delta_.low_rank.empty();
    if (keeps && changed.size() <= stored.shape[0] / 2) {
      kernels::RowMajorWeight values = GatherRows(stored, changed);
      PutRows({.index = std::move(changed), .values = std::move(values)});
      return;
    }
    delta_.planes.clear();
    delta_.low_rank.clear();
    delta_.rows.reset();
    delta_.byte_rows.reset();
    delta_.raw = kernels::PackWeight(context_, stored);
  }

  void PutRows(kernels::PackedRows rows) {
    if (delta_.rows) rows = MergeRows(*delta_.rows, rows);
    delta_.rows = std::move(rows);
  }

  Status ReplaceRows(kernels::PackedRows rows) {
    if (!delta_.low_rank.empty()) {
      return Unsupported("new rows of tokens where the parent has low-rank factors are not supported");
    }
    PutRows(std::move(rows));
    return Status::Ok();
  }

  void AddLowRank(const LinearDelta& change) {
    if (change.low_rank.empty()) return;
    LinearDelta alone{.d_out = change.d_out, .d_in = change.d_in};
    alone.low_rank = change.low_rank;
    for (kernels::PackedLowRank& pair : kernels::PackDelta(context_, alone).low_rank) {
      delta_.low_rank.push_back(std::move(pair));
    }
  }

  void SetBias(const ModuleChange& change) {
    if (change.weight.bias) delta_.bias = ToBuffer(*change.weight.bias);
    if (!change.added_bias) return;
    Buffer<float> bias = ToBuffer(*change.added_bias);
    const float scale = change.weight.low_rank.front().scale;
    const Buffer<float>& start = delta_.bias.empty() ? under_.weight.bias : delta_.bias;
    for (size_t i = 0; i < bias.size(); ++i) bias[i] = (i < start.size() ? start[i] : 0.0F) + scale * bias[i];
    delta_.bias = std::move(bias);
  }

  // DoRA: magnitude / || row ||.
  Status SetGain(const TensorView& magnitude) {
    Buffer<float> gain = ToBuffer(magnitude);
    const Buffer<float> norms = kernels::RowNorms(context_, under_.weight.weight, delta_);
    for (size_t row = 0; row < gain.size(); ++row) {
      gain[row] /= norms[row];
      if (std::isfinite(gain[row])) continue;
      return Corrupt("use_dora: row " + std::to_string(row) + " of W + s B A has length " + std::to_string(norms[row]) +
                     ", by which its magnitude cannot be divided");
    }
    delta_.gain_row = std::move(gain);
    return Status::Ok();
  }

  KernelContext& context_;
  const Under& under_;
  kernels::PackedDelta delta_;
};

class AdapterLoader {
 public:
  AdapterLoader(KernelContext& context, const BaseWeights& base, const AdapterChanges& changes,
                std::shared_ptr<const VariantWeights> parent)
      : context_(context), base_(base), changes_(changes) {
    variant_->kind = VariantKind::kLora;
    variant_->config = parent ? parent->config : base.config;
    if (parent) variant_->rope = parent->rope;
    variant_->parent = std::move(parent);
  }

  Result<std::shared_ptr<VariantWeights>> Load() {
    DF_RETURN_IF_ERROR(LoadTables());
    for (size_t layer = 0; layer < base_.config.n_layers; ++layer) DF_RETURN_IF_ERROR(LoadLayer(layer));
    variant_->final_norm = Norm(kFinalNormName, Parent() ? &Parent()->final_norm : nullptr);
    CountBytes(*variant_);
    return variant_;
  }

 private:
  const VariantWeights* Parent() const { return variant_->parent.get(); }

  const ModuleChange* ChangeOrNull(const std::string& weight) const {
    const auto found = changes_.modules.find(ModuleOf(weight));
    return found != changes_.modules.end() ? &found->second : nullptr;
  }

  Result<kernels::PackedDelta> Matrix(const std::string& weight, const Under& under, const ModuleChange* change) {
    if (change == nullptr) return kernels::Borrow(under.delta);
    Result<kernels::PackedDelta> delta = Overlay(context_, under).Apply(*change);
    if (!delta.ok()) return delta.status().Annotate("module " + ModuleOf(weight));
    return delta;
  }

  Buffer<float> Norm(const std::string& weight, const Buffer<float>* under) const {
    if (const ModuleChange* change = ChangeOrNull(weight)) return ToBuffer(*change->weight.raw);
    return under != nullptr ? under->Borrow() : Buffer<float>();
  }

  Status LoadLayer(size_t layer) {
    LayerDelta& weights = variant_->layers.emplace_back();
    const LayerDelta* under = Parent() ? &Parent()->layers[layer] : nullptr;
    for (size_t i = 0; i < kLinearSlots; ++i) {
      const std::string name = WeightName(layer, static_cast<LinearSlot>(i));
      const kernels::LinearWeight& base = base_.layers[layer].linear[i];
      const kernels::PackedDelta unchanged = kernels::UnchangedDelta(base.weight);
      DF_ASSIGN_OR_RETURN(weights.linear[i],
                          Matrix(name, {base, under ? under->linear[i] : unchanged}, ChangeOrNull(name)));
    }
    for (size_t i = 0; i < kNormSlots; ++i) {
      weights.norm[i] = Norm(NormName(layer, static_cast<NormSlot>(i)), under ? &under->norm[i] : nullptr);
    }
    return Status::Ok();
  }

  // Embedding and head. A head tied to the embedding sees its new token rows and stays tied if both change alike;
  // a low rank or another matrix on one of them leaves the other alone, and the head is then its own.
  Status LoadTables() {
    const kernels::PackedDelta base_embedding = kernels::UnchangedDelta(base_.embedding.weight);
    const kernels::PackedDelta base_head = kernels::UnchangedDelta(base_.HeadWeight().weight);
    const bool on_embedding = Parent() ? Parent()->head_on_embedding : base_.tied;
    const bool tied = Parent() ? !Parent()->head : base_.tied;
    const Under embedding{base_.embedding, Parent() ? Parent()->embedding : base_embedding};
    const Under head{on_embedding ? base_.embedding : base_.head, Parent() ? Parent()->HeadDelta() : base_head};

    const ModuleChange* on_rows = ChangeOrNull(kEmbeddingName);
    DF_ASSIGN_OR_RETURN(variant_->embedding, Matrix(kEmbeddingName, embedding, on_rows));
    variant_->head_on_embedding = on_embedding;
    DF_RETURN_IF_ERROR(LoadHead(head, tied, on_rows));
    variant_->config.vocab = variant_->embedding.d_out;
    const size_t n_logits = variant_->HeadDelta().d_out;
    if (n_logits == variant_->config.vocab) return Status::Ok();
    return Corrupt("the adapter leaves an embedding of " + std::to_string(variant_->config.vocab) +
                   " tokens and a head of " + std::to_string(n_logits));
  }

  // `on_rows`: the embedding's change.
  Status LoadHead(const Under& head, bool tied, const ModuleChange* on_rows) {
    const ModuleChange* change = ChangeOrNull(kHeadName);
    const LinearDelta* embedding = tied && on_rows != nullptr ? &on_rows->weight : nullptr;
    const bool serves_both = embedding == nullptr || (embedding->low_rank.empty() && !embedding->raw);
    if (tied && change == nullptr && serves_both) return Status::Ok();
    if (tied && change != nullptr && on_rows != nullptr && ChangeAlike(*on_rows, *change)) return Status::Ok();
    ModuleChange with_rows;
    if (embedding != nullptr && embedding->rows) {
      with_rows.weight = {.d_out = head.delta.d_out, .d_in = head.delta.d_in};
      if (change != nullptr) with_rows = *change;
      if (!with_rows.weight.rows) with_rows.weight.rows = embedding->rows;
      change = &with_rows;
    }
    DF_ASSIGN_OR_RETURN(variant_->head, Matrix(kHeadName, head, change));
    return Status::Ok();
  }

  KernelContext& context_;
  const BaseWeights& base_;
  const AdapterChanges& changes_;
  std::shared_ptr<VariantWeights> variant_ = std::make_shared<VariantWeights>();
};

}  // namespace

Result<std::shared_ptr<const VariantWeights>> LoadAdapter(KernelContext& context, const BaseWeights& base,
                                                          const PeftAdapter& adapter,
                                                          std::shared_ptr<const VariantWeights> parent) {
  if (parent && parent->kind != VariantKind::kDelta) {
    return Unsupported("the parent of the adapter in " + adapter.directory() +
                       " is an adapter itself: only a 1-bit delta can be");
  }
  DF_ASSIGN_OR_RETURN(const AdapterChanges changes, adapter.Bind(ListModules(parent ? parent->config : base.config)));
  DF_ASSIGN_OR_RETURN(std::string digest, adapter.Digest());
  if (parent) {
    Digest both;
    both.AddText(parent->digest);
    both.AddText(digest);
    digest = both.Hex();
  }
  Result<std::shared_ptr<VariantWeights>> variant = AdapterLoader(context, base, changes, std::move(parent)).Load();
  if (!variant.ok()) return variant.status().Annotate(adapter.directory());
  (*variant)->digest = std::move(digest);
  DF_RETURN_IF_ERROR(adapter.file().file().CheckIntact());
  return std::shared_ptr<const VariantWeights>(*std::move(variant));
}

}  // namespace df
