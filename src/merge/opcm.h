// Continual merging by orthogonal projection (OPCM: Tang et al., "Merging Models on the Fly Without Retraining", 2025).
//
// Models come one after another. With tau_t = W_t - W_b, T_1 = tau_1 and T_{t-1} = sum_i s_i u_i v_i^T, a linear weight
// gets
//
//   T_t = T_{t-1} + tau~_t
//   tau~ = tau - U_r (U_r^T tau V_r) V_r^T - sum_{i > r, s_i > tol} (u_i^T tau v_i) u_i v_i^T
//
// with U_r, V_r the leading r vectors, r the number of values that stand before sum_{i <= r+1} s_i > alpha sum s; every
// other tensor gets T_t = T_{t-1} + tau_t. The published recursion divides by a scale after each step,
// lambda_t = |T_t| / mean_{i <= t} |tau_i| over the whole model, and multiplies by it in the next; vectors and shares
// of singular values do not see a scale, so it cancels, and one division at the end is the same:
//
//   W = W_b + T_k / lambda_k
//
// Hence two passes: Merge gives T_k of each tensor and its sums; ScaleOf is asked when all are known; FinishOpcm then
// makes W of T_k. <T_{t-1}, tau~_t> = 0 holds for each linear weight, and |W - W_b| = mean_i |tau_i| over the model.
#ifndef DELTAFOLD_MERGE_OPCM_H_
#define DELTAFOLD_MERGE_OPCM_H_

#include "merge/method.h"

namespace df::merge {

// First pass: `sink` gets T_k, nothing of the base in it.
Result<Report> MergeOpcm(ThreadPool& pool, const TensorGroup& group, const Settings& settings, const Sink& sink);

// Sums over all tensors of a model. Add them in one order for the same last bits.
struct OpcmSums {
  std::vector<double> task_squares;  // |tau_i|^2 [k]
  std::vector<double> step_squares;  // |T_t|^2 [k]

  void Add(const Report& report);
  // lambda_1 = 1 .. lambda_k.
  std::vector<double> Lambdas() const;
  // 1 / lambda_k; 0 where T_k vanishes.
  double Scale() const;
};

// Second pass: W = W_b + scale T. `unscaled` [as base] F32 is what the first pass gave. result_squares of the report is
// |W - W_b|^2. Errors as Merge.
Result<Report> FinishOpcm(ThreadPool& pool, const std::string& name, const TensorView& base, const TensorView& unscaled,
                          double scale, const Sink& sink);

}  // namespace df::merge

#endif  // DELTAFOLD_MERGE_OPCM_H_
