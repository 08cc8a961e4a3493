// How alike two adapters are: the mean over the union of their modules of cosine(delta-W_1, delta-W_2), in factor
// space. A module that one of them lacks, or where one is zero, counts 0. Unrelated adapters have some 0.02.
#ifndef DELTAFOLD_MERGE_ADAPTER_SIMILARITY_H_
#define DELTAFOLD_MERGE_ADAPTER_SIMILARITY_H_

#include "merge/adapter_factors.h"

namespace df {

// Modules of one path must have one shape in both: CheckSameBase. 2 r1 r2 (d_out + d_in) FLOPs a module. In [-1, 1];
// the same whatever the number of threads.
double Similarity(ThreadPool& pool, const AdapterFactors& first, const AdapterFactors& second);

// Similarity of ReadFactors of an adapter to `second`, to the bit, while `first` is read: of each thread one module's
// factors are in memory. squared_norms [first.size()]: of each product. The only error is kCorrupt (values that are not
// finite).
Result<double> SimilarityOfStored(ThreadPool& pool, std::span<const StoredFactors> first,
                                  std::span<const double> squared_norms, const AdapterFactors& second);

// kFailedPrecondition naming a module that has another shape in `second` than in `first`: they are made for other
// bases.
Status CheckSameBase(const AdapterFactors& first, const AdapterFactors& second);

}  // namespace df

#endif  // DELTAFOLD_MERGE_ADAPTER_SIMILARITY_H_
