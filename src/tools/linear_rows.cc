#include "tools/linear_rows.h"

#include <algorithm>
#include <cstring>

#include "tools/synthetic_weights.h"

namespace df::tools {
namespace {

using kernels::Cost;
using kernels::Phase;
using Operation = RowSet::Operation;
using Times = RowSet::Times;

// What a call cannot beat, from the limits as they were in the same round.
struct Bound {
  Operation read = 0, multiply_add = 0;
  double read_bytes = 0, flops = 0;  // of the two operations

  double Seconds(const Times& times, const Cost& cost) const {
    return std::max(times(read) * cost.bytes / read_bytes, times(multiply_add) * cost.flops / flops);
  }
};

class LinearRows {
 public:
  LinearRows(LinearWorld& world, RowSet& rows) : world_(world), rows_(rows) {
    bound_.read = rows.Add([&world] { world.ReadWeight(); });
    bound_.multiply_add = rows.Add([&world] { world.MultiplyAdd(); });
    bound_.read_bytes = world.weight_bytes();
    rows.SetReading(bound_.read, bound_.read_bytes);
    bound_.flops = world.MultiplyAdd();
  }

  void AddDecode() {
    const Operation one = Add({.n_rows = 1});
    AddBandwidthShare(one);
    for (const size_t n : {2U, 4U, 8U, 16U}) {
      const Operation base = Add({.n_rows = n});
      AddBoundShare("base_bound_share_" + std::to_string(n), base, {.n_rows = n});
      if (n == 16) continue;
      const LinearWorldCall call = {.n_rows = n, .n_segments = n, .change = Change::kSigns};
      const Operation mixed = Add(call);
      AddMixedBound(n, mixed, base, call);
      if (n == 8) AddSeparate(mixed, call);
    }
    const LinearWorldCall variant = {.change = Change::kSigns};
    AddRatio("decode_variant_over_base", Add(variant), one, variant);
  }

  void AddPrefill() {
    for (const size_t n : {16U, 64U, 256U}) {
      const LinearWorldCall call = {.phase = Phase::kPrefill, .n_rows = n, .change = Change::kSigns};
      const Operation base = Add({.phase = Phase::kPrefill, .n_rows = n});
      AddRatio("prefill_variant_over_base_" + std::to_string(n), Add(call), base, call);
    }
    const LinearWorldCall call = {.phase = Phase::kPrefill, .n_rows = 128};
    const Operation base = Add(call);
    const Cost cost = world_.CostOf(call);
    rows_.AddRow({.name = "prefill_fma_share",
                  .subject = base,
                  .cost = cost,
                  .others = {bound_.multiply_add},
                  .sample = [b = bound_, base, cost](const Times& times) {
                    return times(b.multiply_add) * cost.flops / b.flops / times(base);
                  }});
  }

 private:
  Operation Add(const LinearWorldCall& call) {
    return rows_.Add([this, call] { world_.Run(call); });
  }

  void AddBandwidthShare(Operation one) {
    const Cost cost = world_.CostOf({});
    rows_.AddRow({.name = "gemv_bandwidth_share",
                  .subject = one,
                  .cost = cost,
                  .others = {bound_.read},
                  .sample = [b = bound_, one, cost](const Times& times) {
                    return times(b.read) * cost.bytes / b.read_bytes / times(one);
                  }});
  }

  void AddBoundShare(const std::string& name, Operation base, const LinearWorldCall& call) {
    const Cost cost = world_.CostOf(call);
    rows_.AddRow(
        {.name = name,
         .subject = base,
         .cost = cost,
         .others = {bound_.read, bound_.multiply_add},
         .sample = [b = bound_, base, cost](const Times& times) { return b.Seconds(times, cost) / times(base); }});
  }

  void AddMixedBound(size_t n, Operation mixed, Operation base, const LinearWorldCall& call) {
    const double bytes = world_.n_weights() * (2 + static_cast<double>(n) / 8);
    rows_.AddRow({.name = "decode_mixed_bound_" + std::to_string(n),
                  .subject = mixed,
                  .cost = world_.CostOf(call),
                  .others = {base, bound_.read},
                  .sample = [b = bound_, base, mixed, bytes](const Times& times) {
                    return times(mixed) / std::max(times(base), times(b.read) * bytes / b.read_bytes);
                  }});
  }

  // Eight copies of the model, each read for its own row: what serving the fine-tunes whole costs.
  void AddSeparate(Operation mixed, const LinearWorldCall& call) {
    const Operation separate = rows_.Add([this] {
      for (int i = 0; i < 8; ++i) world_.Run({});
    });
    rows_.AddRow({.name = "decode_8_variants_vs_separate",
                  .subject = mixed,
                  .cost = world_.CostOf(call),
                  .others = {separate},
                  .sample = [separate, mixed](const Times& times) { return times(separate) / times(mixed); }});
  }

  void AddRatio(const std::string& name, Operation subject, Operation base, const LinearWorldCall& call) {
    rows_.AddRow({.name = name,
                  .subject = subject,
                  .cost = world_.CostOf(call),
                  .others = {base},
                  .sample = [subject, base](const Times& times) { return times(subject) / times(base); }});
  }

  LinearWorld& world_;
  RowSet& rows_;
  Bound bound_;
};

// Packing `bytes` of stored form against copying them: both into fresh memory, since the first touch of pages is part
// of loading.
std::vector<RowResult> MeasurePacking(KernelContext& context, const std::string& shape, Bytes stored,
                                      const std::function<void()>& pack, const RowSelection& selection,
                                      size_t n_rounds) {
  RowSet rows(shape, context.pool.n_threads());
  const Operation copying = rows.Add([&] {
    Buffer<uint8_t> copy(stored.size());
    context.pool.ParallelFor(stored.size(), 4096, [&](size_t begin, size_t end, size_t) {
      std::memcpy(copy.data() + begin, stored.data() + begin, end - begin);
    });
  });
  const Operation packing = rows.Add(pack);
  rows.AddRow({.name = "repack_share",
               .subject = packing,
               .cost = {.bytes = static_cast<double>(stored.size()), .flops = 0},
               .others = {copying},
               .sample = [=](const Times& times) { return times(copying) / times(packing); }});
  return rows.Measure(selection, n_rounds);
}

void MeasurePackingRows(KernelContext& context, const MatrixShape& shape, const RowSelection& selection,
                        size_t n_rounds, std::vector<RowResult>& results) {
  if (!Wants(selection, "repack_share")) return;
  // A base matrix in stored form: any bf16 values do.
  const kernels::PackedWeight weight = SyntheticWeight(context, shape.d_out, shape.d_in, 1);
  const TensorView stored = {DType::kBf16, Shape{shape.d_out, shape.d_in},
                             weight.tiles.span().first(shape.d_out * shape.d_in * 2)};
  const auto pack_base = [&] { kernels::PackWeight(context, stored); };
  for (RowResult& row : MeasurePacking(context, shape.name + " base", stored.bytes, pack_base, selection, n_rounds)) {
    results.push_back(std::move(row));
  }
  SyntheticDelta made;
  const LinearDelta& delta = made.Make(shape.d_out, shape.d_in, 2);
  const auto pack_signs = [&] { kernels::PackDelta(context, delta); };
  for (RowResult& row :
       MeasurePacking(context, shape.name + " signs", delta.planes[0].bits, pack_signs, selection, n_rounds)) {
    results.push_back(std::move(row));
  }
}

}  // namespace

std::vector<RowResult> MeasureLinearRows(LinearWorld& world, const RowSelection& selection, size_t n_rounds) {
  std::vector<RowResult> results;
  for (const bool prefill : {false, true}) {
    RowSet rows(world.shape().name, world.context().pool.n_threads());
    LinearRows linear(world, rows);
    prefill ? linear.AddPrefill() : linear.AddDecode();
    for (RowResult& row : rows.Measure(selection, n_rounds)) results.push_back(std::move(row));
  }
  MeasurePackingRows(world.context(), world.shape(), selection, n_rounds, results);
  return results;
}

}  // namespace df::tools
