#include "tools/prefill_dtype_rows.h"

#include "kernels/prefill_dtype.h"

namespace df::tools {
namespace {

using kernels::Phase;
using Operation = RowSet::Operation;
using Times = RowSet::Times;

constexpr KernelOptions kF32 = {.batch_invariant = false};
constexpr KernelOptions kBf16 = {.prefill_dtype = PrefillDtype::kBf16, .batch_invariant = false};
constexpr LinearWorldCall kBase128 = {.phase = Phase::kPrefill, .n_rows = 128};
constexpr LinearWorldCall kBase256 = {.phase = Phase::kPrefill, .n_rows = 256};
constexpr LinearWorldCall kVariant256 = {.phase = Phase::kPrefill, .n_rows = 256, .change = Change::kSigns};

}  // namespace

std::vector<RowResult> MeasurePrefillDtypeRows(LinearWorld& world, const RowSelection& selection, size_t n_rounds) {
  RowSet rows(world.shape().name, world.context().pool.n_threads());
  const Status status = kernels::CheckPrefillDtype(PrefillDtype::kBf16);
  if (!status.ok()) {
    for (const char* name : {"prefill_bf16_share", "prefill_bf16_speedup", "prefill_bf16_variant_over_base_256"}) {
      rows.AddRow({.name = name, .missing = status.message()});
    }
    return rows.Measure(selection, n_rounds);
  }
  const auto add = [&](const KernelOptions& options, const LinearWorldCall& call) {
    return rows.Add([&world, &options, &call] { world.RunWith(options, call); });
  };
  const Operation dots = rows.Add([&world] { world.DotBf16(); });
  const double dot_flops = world.DotBf16();
  const Operation in_f32 = add(kF32, kBase128), in_bf16 = add(kBf16, kBase128);
  const kernels::Cost cost = world.CostOf(kBf16, kBase128);
  rows.AddRow({.name = "prefill_bf16_share",
               .subject = in_bf16,
               .cost = cost,
               .others = {dots},
               .sample = [=](const Times& times) { return times(dots) * cost.flops / dot_flops / times(in_bf16); },
               .by_bf16_dots = true});
  rows.AddRow({.name = "prefill_bf16_speedup",
               .subject = in_bf16,
               .cost = cost,
               .others = {in_f32},
               .sample = [=](const Times& times) { return times(in_f32) / times(in_bf16); },
               .by_bf16_dots = true});
  const Operation base = add(kBf16, kBase256), variant = add(kBf16, kVariant256);
  rows.AddRow({.name = "prefill_bf16_variant_over_base_256",
               .subject = variant,
               .cost = world.CostOf(kBf16, kVariant256),
               .others = {base},
               .sample = [=](const Times& times) { return times(variant) / times(base); },
               .by_bf16_dots = true});
  return rows.Measure(selection, n_rounds);
}

}  // namespace df::tools
