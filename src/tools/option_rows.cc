#include "tools/option_rows.h"

namespace df::tools {
namespace {

using Operation = RowSet::Operation;

// Rows that compare a call under some options with the same call as programs make it by default.
class OptionRows {
 public:
  OptionRows(LinearWorld& world, RowSet& rows) : world_(world), rows_(rows) {}

  void AddSignKernels(const LinearWorldCall& call) {
    const Operation by_default = Add(kDefault, call);
    const std::string n = std::to_string(call.n_rows);
    AddRatio("sign_exact_over_auto_" + n, {.sign_kernel = SignKernel::kExact, .batch_invariant = false}, by_default,
             call);
    AddRatio("sign_lut_over_auto_" + n, {.sign_kernel = SignKernel::kLookup, .batch_invariant = false}, by_default,
             call);
  }

  void AddBatchInvariant(const LinearWorldCall& call) {
    AddRatio("batch_invariant_over_default_" + std::to_string(call.n_rows), {.batch_invariant = true},
             Add(kDefault, call), call);
  }

 private:
  static constexpr KernelOptions kDefault = {.batch_invariant = false};

  Operation Add(const KernelOptions& options, const LinearWorldCall& call) {
    return rows_.Add([this, options, call] { world_.RunWith(options, call); });
  }

  void AddRatio(const std::string& name, const KernelOptions& options, Operation by_default,
                const LinearWorldCall& call) {
    const Operation subject = Add(options, call);
    rows_.AddRow({.name = name,
                  .subject = subject,
                  .cost = world_.CostOf(options, call),
                  .others = {by_default},
                  .sample = [=](const RowSet::Times& times) { return times(subject) / times(by_default); }});
  }

  LinearWorld& world_;
  RowSet& rows_;
};

}  // namespace

std::vector<RowResult> MeasureOptionRows(LinearWorld& world, const RowSelection& selection, size_t n_rounds) {
  RowSet rows(world.shape().name, world.context().pool.n_threads());
  rows.SetReading(rows.Add([&world] { world.ReadWeight(); }), world.weight_bytes());
  OptionRows options(world, rows);
  for (const size_t n : {size_t{1}, size_t{8}}) {
    const LinearWorldCall distinct = {.n_rows = n, .n_segments = n, .change = Change::kSigns};
    options.AddSignKernels(distinct);
    options.AddBatchInvariant(distinct);
  }
  options.AddBatchInvariant({.n_rows = 16, .n_segments = 1, .change = Change::kSigns});
  return rows.Measure(selection, n_rounds);
}

}  // namespace df::tools
