// A LoRA adapter as merging sees it: for each module the factors of delta-W, its scale folded in.
//
//   delta-W = s B A = b a          b = s B [d_out, r],  a = A [r, d_in]
//
// Input: an opened PEFT adapter. Called by the adapter pool, and by whoever needs products of adapters.
#ifndef DELTAFOLD_MERGE_ADAPTER_FACTORS_H_
#define DELTAFOLD_MERGE_ADAPTER_FACTORS_H_

#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/thread_pool.h"
#include "format/peft_adapter.h"
#include "tensor/dtype.h"
#include "tensor/mat.h"

namespace df {

// More modules than any architecture served has; their ranks and scales fit one adapter_config.json.
inline constexpr size_t kMaxMergedModules = 4096;

struct FactorPair {
  Mat<float> a;             // [r, d_in]
  Mat<float> b;             // [d_out, r]
  double squared_norm = 0;  // of b a, Frobenius, from f64 sums

  size_t rank() const { return a.rows(); }
  size_t d_out() const { return b.rows(); }
  size_t d_in() const { return a.cols(); }
};

struct AdapterFactors {
  std::map<std::string, FactorPair> modules;  // by module path
  DType dtype = DType::kF32;                  // the widest that is stored: F32, else BF16, else F16

  double SquaredNorm() const;
};

// What keeps `adapter` from being merged, named; empty when nothing does, and for one that breaks what its config
// promises, which is an error of ReadFactors. Merging is defined for sums of products b a alone: DoRA, biases, saved
// modules, replaced tokens and factors of an embedding are something else.
std::string WhyNotMerged(const PeftAdapter& adapter);

// |b a|^2 = sum (b^T b) o (a a^T). One thread.
double SquaredNormOf(const FactorPair& pair);
// tr((b1 a1)^T b2 a2) = sum (b1^T b2) o (a1 a2^T): f32 products of r x r results, summed in f64; the error is at most
// some (d_out + d_in) 2^-24 |b1| |b2| |a1| |a2|. Both of one shape. One thread.
double InnerProduct(const FactorPair& first, const FactorPair& second);

// tr((b1 a1)^T b2 a2) of views: as above.
struct FactorViews {
  MatView<const float> a, b;
};
double InnerProduct(const FactorViews& first, const FactorViews& second);

// A module's factors as they are stored; views into the adapter's file.
struct StoredFactors {
  std::string path;
  TensorView a, b;  // A [r, d_in], B [d_out, r]
  double scale = 1;

  size_t rank() const { return a.shape[0]; }
  size_t d_out() const { return b.shape[0]; }
  size_t d_in() const { return a.shape[1]; }
};
// By path, ascending. Errors as ReadFactors, but for those of values.
Result<std::vector<StoredFactors>> ListFactors(const PeftAdapter& adapter);
// AdapterFactors::dtype of them.
DType WidestType(std::span<const StoredFactors> stored);
// a and s B in f32, of the stored sizes.
void ReadInto(const StoredFactors& stored, std::span<float> a, std::span<float> b);

// `squared_norms`: those of the modules in the order of their paths, where they are known; else empty, and they are
// computed. Takes 4 bytes an element. The only errors are CheckPromises', kUnsupported (WhyNotMerged, or more than
// kMaxMergedModules), kCorrupt (a module that the config does not target, a rank that it does not give, factors of
// different ranks, values that are not finite or whose product is not) and kInvalidArgument (a scale that is not
// finite).
Result<AdapterFactors> ReadFactors(ThreadPool& pool, const PeftAdapter& adapter,
                                   std::span<const double> squared_norms = {});
// Those that `factors` has, in that order.
std::vector<double> SquaredNormsOf(const AdapterFactors& factors);

}  // namespace df

#endif  // DELTAFOLD_MERGE_ADAPTER_FACTORS_H_
