// The matrices, variants and activations of one shape that the rows about kernels/linear.h multiply: calls take the
// next matrix and the next variants, round and round, so that none is in a cache when its turn comes again.
#ifndef DELTAFOLD_TOOLS_LINEAR_WORLD_H_
#define DELTAFOLD_TOOLS_LINEAR_WORLD_H_

#include <string>
#include <vector>

#include "kernels/cost.h"
#include "kernels/linear.h"
#include "tensor/kernel_context.h"
#include "tools/row_set.h"

namespace df::tools {

// One weight matrix of a real model.
struct MatrixShape {
  std::string name;  // "llama-8b up 14336x4096"
  size_t d_out = 0;
  size_t d_in = 0;
};

enum class Change : uint8_t { kNone, kSigns, kAdapter };

// `n_rows` rows in `n_segments` equal parts: of the base, or each of its own variant.
struct LinearWorldCall {
  kernels::Phase phase = kernels::Phase::kDecode;
  size_t n_rows = 1;  // at most 256
  size_t n_segments = 1;
  Change change = Change::kNone;
};

// Weights take more memory than the last-level cache and than 320 MB. Thread-compatible.
class LinearWorld {
 public:
  LinearWorld(KernelContext& context, const MatrixShape& shape);

  void Run(const LinearWorldCall& call);
  // The same with other options than the context's.
  void RunWith(const KernelOptions& options, const LinearWorldCall& call);
  kernels::Cost CostOf(const LinearWorldCall& call) { return CostOf(context_.options, call); }
  kernels::Cost CostOf(const KernelOptions& options, const LinearWorldCall& call);
  // The next matrix, read in sequence.
  void ReadWeight();
  double MultiplyAdd();  // FLOPs done, in about a millisecond
  double DotBf16();      // the same by dot products of bf16

  KernelContext& context() { return context_; }
  const MatrixShape& shape() const { return shape_; }
  double weight_bytes() const { return static_cast<double>(bases_[0].weight.bytes()); }
  double n_weights() const { return static_cast<double>(shape_.d_out) * static_cast<double>(shape_.d_in); }

 private:
  const kernels::LinearWeight& NextBase() { return bases_[base_turn_++ % bases_.size()]; }
  void FillSegments(const LinearWorldCall& call);

  KernelContext& context_;
  MatrixShape shape_;
  std::vector<kernels::LinearWeight> bases_;
  std::vector<kernels::PackedDelta> variants_, adapters_;
  std::vector<kernels::LinearSegment> segments_;
  Mat<float> x_, y_;
  size_t base_turn_ = 0, variant_turn_ = 0;
};

}  // namespace df::tools

#endif  // DELTAFOLD_TOOLS_LINEAR_WORLD_H_
