// What linear, task_arithmetic, slerp, ties, dare and the second pass of opcm share: each element of the result is made
// of the same element of the inputs, in one look at them, block by block in the cache.
//
//   out = W_b + sum_i c_i prune_i(W_i - W_b)      or, with a consensus, the sum over those of the elected sign
//
// Without a base W_b = 0. Differences are rounded to f32 once, products and sums run in f64, the result is rounded
// once.
#ifndef DELTAFOLD_MERGE_ELEMENTWISE_H_
#define DELTAFOLD_MERGE_ELEMENTWISE_H_

#include <functional>
#include <optional>
#include <vector>

#include "merge/element_ops.h"
#include "merge/method.h"

namespace df::merge {

// Elements of a block: what a sink gets at once. As f32 64 KiB, which stay in the second cache with what they are made
// of. Sums over a tensor run over its blocks in order, whatever the threads.
inline constexpr size_t kBlock = 16384;

// visit(first, size) for the blocks of [0, n) on all threads.
void ForEachBlock(ThreadPool& pool, size_t n, const std::function<void(size_t first, size_t size)>& visit);

// Elements [first, first + out.size()) of the difference of model `model` to the base, in f32; without a base the
// model's own.
void ReadDifference(const TensorGroup& group, size_t model, size_t first, std::span<float> out);
// The same elements of any tensor.
void ReadElements(const TensorView& tensor, size_t first, std::span<float> out);

// kCorrupt naming tensor, model and place of the first NaN or infinity of the group; when all is finite, that the merge
// overflows f32. For a merge whose sums are not finite.
Status FindNonFinite(const TensorGroup& group);

struct ElementwiseRule {
  std::vector<double> coefficients;  // c_i [k]
  // Changes elements [first, first + d.size()) of difference `model`; called from several threads at once. Null: none.
  std::function<void(size_t model, size_t first, std::span<float> d)> prune = {};
  bool has_consensus = false;
  std::vector<double> divisors = {};  // of the consensus, element_ops.h
  double lambda = 1;                  // of the consensus
};

// Merges by `rule`. The only error is FindNonFinite's.
Result<Report> MergeElementwise(ThreadPool& pool, const TensorGroup& group, const ElementwiseRule& rule,
                                const Sink& sink);

// The only model as it is.
Result<Report> CopyModel(ThreadPool& pool, const TensorGroup& group, const Sink& sink);

// Coefficients lambda w_i, divided by the sum of the weights where `normalize` asks for it and that is not below 1e-8.
std::vector<double> TaskCoefficients(const Settings& settings);

}  // namespace df::merge

#endif  // DELTAFOLD_MERGE_ELEMENTWISE_H_
