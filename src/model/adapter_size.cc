// How much memory an adapter's load takes (model/load_adapter.cc does it).
#include <algorithm>

#include "format/delta_dir.h"
#include "format/peft_adapter.h"
#include "model/bind.h"
#include "model/weights.h"

namespace df {
namespace {

constexpr size_t kIndexBytes = sizeof(int32_t);

// The parent's rows, replaced and in bytes: every variant on it has an index of its own, and values where they are
// merged with others.
struct ParentRows {
  size_t index_bytes = 0;
  size_t merged_bytes = 0;  // f32, of the tables
};

ParentRows RowsOf(const DeltaDirectory* parent) {
  ParentRows rows;
  if (parent == nullptr) return rows;
  for (const auto& [name, tensor] : parent->tensors()) {
    if (tensor.view.shape.rank() != 2) continue;
    if (name.ends_with(".rows_q")) rows.index_bytes += tensor.view.shape[0] * kIndexBytes;
    if (!name.ends_with(".rows")) continue;
    rows.index_bytes += tensor.view.shape[0] * kIndexBytes;
    rows.merged_bytes += tensor.view.elements() * sizeof(float);
  }
  return rows;
}

bool IsTable(const std::string& path) { return path == ModuleOf(kEmbeddingName) || path == ModuleOf(kHeadName); }

bool ChangesRows(const ModuleChange& change) { return change.weight.rows || change.weight.raw; }

size_t BytesOfRows(const ReplacedRows& rows) {
  return rows.index.size() * kIndexBytes + std::max(rows.values.bytes.size(), rows.values.elements() * sizeof(float));
}

size_t BytesOf(const ModuleChange& change) {
  const LinearDelta& weight = change.weight;
  size_t bytes = 0;
  if (weight.raw && weight.raw->shape.rank() == 1) return weight.raw->elements() * sizeof(float);  // a norm
  LinearDelta packed{.d_out = weight.d_out, .d_in = weight.d_in};
  packed.low_rank = weight.low_rank;
  packed.raw = weight.raw;  // or half as many rows in f32, with an index
  if (weight.raw) bytes += weight.d_out * kIndexBytes;
  if (weight.rows) bytes += BytesOfRows(*weight.rows);
  if (weight.bias || change.added_bias) bytes += weight.d_out * sizeof(float);
  if (weight.magnitude) bytes += weight.d_out * sizeof(float);
  return bytes + kernels::PackedBytes(packed);
}

}  // namespace

Result<AdapterSize> MeasureAdapter(const BaseWeights& base, const PeftAdapter& adapter, const DeltaDirectory* parent) {
  const ModelConfig& under = parent == nullptr ? base.config : parent->config();
  DF_ASSIGN_OR_RETURN(const AdapterChanges changes, adapter.Bind(ListModules(under)));
  const ParentRows rows = RowsOf(parent);
  AdapterSize size = {.most_bytes = 2 * rows.index_bytes, .vocab = under.vocab};
  for (const auto& [path, change] : changes.modules) {
    size.most_bytes += BytesOf(change);
    if (!IsTable(path)) continue;
    if (ChangesRows(change)) size.most_bytes += rows.merged_bytes;
    if (path != ModuleOf(kEmbeddingName)) continue;
    size.vocab = change.weight.d_out;
    // A tied head sees the embedding's new rows in a table of its own.
    if (change.weight.rows) size.most_bytes += BytesOfRows(*change.weight.rows) + rows.merged_bytes;
  }
  return size;
}

}  // namespace df
