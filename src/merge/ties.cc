#include "merge/ties.h"

#include <algorithm>

#include "merge/elementwise.h"
#include "merge/magnitude_cut.h"

namespace df::merge {

Result<Report> MergeTies(ThreadPool& pool, const TensorGroup& group, const Settings& settings, const Sink& sink) {
  const std::vector<MagnitudeCut> cuts = FindMagnitudeCuts(pool, group, settings.densities);
  ElementwiseRule rule{.coefficients = settings.weights, .has_consensus = true, .lambda = settings.lambda};
  if (settings.normalize) rule.divisors = settings.weights;
  rule.prune = [&](size_t model, size_t first, std::span<float> d) {
    const MagnitudeCut& cut = cuts[model];
    const size_t n_equal = cut.end <= first ? 0 : std::min(cut.end - first, d.size());
    element_ops::KeepAtLeast(cut.bits, d.first(n_equal));
    element_ops::KeepAtLeast(cut.bits + 1, d.subspan(n_equal));
  };
  return MergeElementwise(pool, group, rule, sink);
}

}  // namespace df::merge
