#include "merge/element_ops.h"

#include "base/check.h"
#include "kernels/target.h"
#include "merge/cpu/element_ops.h"
#include "merge/ref/element_ops.h"

namespace df::merge::element_ops {

using kernels::IsScalarTarget;

double Squares(std::span<const float> values) { return (IsScalarTarget() ? ref::Squares : cpu::Squares)(values); }

void KeepAtLeast(uint32_t least, std::span<float> values) {
  (IsScalarTarget() ? ref::KeepAtLeast : cpu::KeepAtLeast)(least, values);
}

void Drop(uint64_t key, uint64_t first, uint32_t below, std::span<float> values) {
  (IsScalarTarget() ? ref::Drop : cpu::Drop)(key, first, below, values);
}

double WeightedSum(const Runs& runs, std::span<const double> coefficients, std::span<float> out) {
  return (IsScalarTarget() ? ref::WeightedSum : cpu::WeightedSum)(runs, coefficients, out);
}

double StoredSum(const StoredRuns& runs, std::span<const double> coefficients, std::span<double> squares,
                 std::span<float> out) {
  DF_CHECK(!runs.models.empty() && runs.models.size() <= kMaxStored);
  return (IsScalarTarget() ? ref::StoredSum : cpu::StoredSum)(runs, coefficients, squares, out);
}

double AgreeingSum(const Runs& runs, const Consensus& consensus, std::span<float> out) {
  return (IsScalarTarget() ? ref::AgreeingSum : cpu::AgreeingSum)(runs, consensus, out);
}

}  // namespace df::merge::element_ops
