#include "tools/adapter_rows.h"

namespace df::tools {

std::vector<RowResult> MeasureAdapterRows(LinearWorld& world, const RowSelection& selection, size_t n_rounds) {
  constexpr size_t kRows = 8;
  RowSet rows(world.shape().name, world.context().pool.n_threads());
  rows.SetReading(rows.Add([&world] { world.ReadWeight(); }), world.weight_bytes());
  const RowSet::Operation base = rows.Add([&world] { world.Run({.n_rows = kRows}); });
  for (const size_t n_adapters : {size_t{1}, kRows}) {
    const LinearWorldCall call = {.n_rows = kRows, .n_segments = n_adapters, .change = Change::kAdapter};
    const RowSet::Operation adapted = rows.Add([&world, call] { world.Run(call); });
    rows.AddRow({.name = "adapter_over_base_" + std::to_string(n_adapters),
                 .subject = adapted,
                 .cost = world.CostOf(call),
                 .others = {base},
                 .sample = [=](const RowSet::Times& times) { return times(adapted) / times(base); }});
  }
  return rows.Measure(selection, n_rounds);
}

}  // namespace df::tools
