// A few kilobytes by which the inner product of two adapters can be told when one of them is gone: a slot keeps one of
// each member.
//
//   S = sum over modules of P_m delta-W_m Q_m        [64, 64]
//
// where P_m and Q_m send each row and column to one of 64 with a sign, both by a hash of the module's path (count
// sketch: Charikar, Chen, Farach-Colton, 2002, on both sides). <S_1, S_2> is <delta-W_1, delta-W_2> in the mean; its
// standard deviation over hashes, relative to |delta-W_1| |delta-W_2|, is some sqrt(1/4096 + 1/32 C), C the mean over
// what is aligned in one module, and about 0.03 for adapters of a model's 28 or more modules.
#ifndef DELTAFOLD_MERGE_ADAPTER_SKETCH_H_
#define DELTAFOLD_MERGE_ADAPTER_SKETCH_H_

#include <vector>

#include "base/thread_pool.h"
#include "merge/adapter_factors.h"

namespace df {

inline constexpr size_t kSketchSide = 64;
inline constexpr size_t kSketchElements = kSketchSide * kSketchSide;

using AdapterSketch = std::vector<float>;  // [64 * 64], row-major

// The same bits whatever the number of threads.
AdapterSketch SketchOf(ThreadPool& pool, const AdapterFactors& factors);

double InnerProduct(const AdapterSketch& first, const AdapterSketch& second);

}  // namespace df

#endif  // DELTAFOLD_MERGE_ADAPTER_SKETCH_H_
