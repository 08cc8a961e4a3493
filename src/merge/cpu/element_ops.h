// element_ops.h with Highway, for the vector target in force.
#ifndef DELTAFOLD_MERGE_CPU_ELEMENT_OPS_H_
#define DELTAFOLD_MERGE_CPU_ELEMENT_OPS_H_

#include "merge/element_ops.h"

namespace df::merge::element_ops::cpu {

double Squares(std::span<const float> values);
void KeepAtLeast(uint32_t least, std::span<float> values);
void Drop(uint64_t key, uint64_t first, uint32_t below, std::span<float> values);
double WeightedSum(const Runs& runs, std::span<const double> coefficients, std::span<float> out);
double StoredSum(const StoredRuns& runs, std::span<const double> coefficients, std::span<double> squares,
                 std::span<float> out);
double AgreeingSum(const Runs& runs, const Consensus& consensus, std::span<float> out);

}  // namespace df::merge::element_ops::cpu

#endif  // DELTAFOLD_MERGE_CPU_ELEMENT_OPS_H_
