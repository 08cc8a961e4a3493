// Merging an adapter into a slot of the pool, in delta-W space: what comes out is the best adapter of its rank for the
// sum that the rule asks for, in every module that either has. Averaging A and B by themselves would be another matrix:
// (1/n^2) sum_ij b_i a_j has cross terms.
//
//   kMean   X = (1 - 1/n) M + (1/n) D                     n members with the new one: the running mean
//   kOpcm   T = l M + D - P(D),  l' = |T| / mean |D_i|,  X = T / l'      continual merging by projection: P(D) is
//           the part of D in the leading singular block of M and on its diagonal; l of the first member is 1
//           (Tang et al., "Merging models on the fly without retraining", 2025)
//
// M: the slot, D: what is added, both delta-W; X is cut to the rank and rounded to the stored type.
#ifndef DELTAFOLD_MERGE_ADAPTER_MERGE_H_
#define DELTAFOLD_MERGE_ADAPTER_MERGE_H_

#include "base/status.h"
#include "base/thread_pool.h"
#include "merge/adapter_factors.h"

namespace df {

enum class AdapterRule { kMean, kOpcm };

struct AdapterMergeOptions {
  size_t rank = 0;  // of a merged module, at most; 0 = the larger of its two
  AdapterRule rule = AdapterRule::kMean;
  double alpha = 0.5;         // kOpcm: the leading block ends where this share of the singular values' sum is passed
  DType dtype = DType::kF32;  // of the result: F32, BF16 or F16
};

// What a slot knows beside its factors.
struct SlotHistory {
  size_t n_merged = 1;      // adapters that went into it
  double sum_of_norms = 0;  // of their delta-W
  double opcm_scale = 1;    // l
};

struct AdapterMerge {
  AdapterFactors merged;        // as stored: values of options.dtype
  double energy = 0;            // |X|^2
  double discarded_energy = 0;  // |X|^2 - |X cut to the rank|^2
  double lost = 0;              // |merged - X|, at most: what was cut, and the norm of rounding to the stored type
  double moved = 0;             // |merged - M|, at most
  double added_error = 0;       // |merged - D|, at most
  double opcm_scale = 1;        // l'
};

// 2 (d_out + d_in) k (k + r) FLOPs a module, k the sum of both ranks, most of them f64; holds both adapters, the result
// and, for each thread, one module's copy. The only errors are kFailedPrecondition (CheckSameBase; a value that the
// stored type cannot hold) and those of EigenOfSymmetric.
Result<AdapterMerge> MergeAdapter(ThreadPool& pool, const AdapterFactors& slot, const SlotHistory& history,
                                  const AdapterFactors& added, const AdapterMergeOptions& options);

// The mean of several at once, cut to `rank` (0: the largest of a module's ranks), in f32: what a slot is measured
// against. `moved` and `added_error` are 0. Errors as above.
Result<AdapterMerge> MeanOfAdapters(ThreadPool& pool, const std::vector<const AdapterFactors*>& adapters, size_t rank);

}  // namespace df

#endif  // DELTAFOLD_MERGE_ADAPTER_MERGE_H_
