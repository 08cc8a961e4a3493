// Made-up weights in memory, packed as LoadBase and LoadDelta would have packed them.
#ifndef DELTAFOLD_TOOLS_SYNTHETIC_WEIGHTS_H_
#define DELTAFOLD_TOOLS_SYNTHETIC_WEIGHTS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "model/weights.h"
#include "tensor/kernel_context.h"

namespace df::tools {

// A bf16 matrix in P32, uniform in [-kSyntheticBound, kSyntheticBound).
kernels::PackedWeight SyntheticWeight(KernelContext& context, size_t d_out, size_t d_in, uint64_t seed);

// Random signs with random row scales, a tenth of the weights' size, in stored form.
class SyntheticDelta {
 public:
  // The change of one matrix; valid until the next call.
  const LinearDelta& Make(size_t d_out, size_t d_in, uint64_t seed);

 private:
  std::vector<uint64_t> bits_;
  std::vector<float> scales_;
  LinearDelta delta_;
};

struct AdapterShape {
  size_t d_out = 0, d_in = 0, rank = 0;
};
// The change of one matrix by a bf16 LoRA pair.
kernels::PackedDelta SyntheticAdapter(KernelContext& context, const AdapterShape& shape, uint64_t seed);

// One sign plane for every matrix of the layers; embedding, head and norms are those of `base`.
std::shared_ptr<const VariantWeights> SyntheticVariant(KernelContext& context, const BaseWeights& base, uint64_t seed);
std::shared_ptr<const BaseWeights> SyntheticBase(KernelContext& context, const ModelConfig& config, uint64_t seed);

// Memory that these will hold.
uint64_t SyntheticBaseBytes(const ModelConfig& config);
uint64_t SyntheticVariantBytes(const ModelConfig& config);

}  // namespace df::tools

#endif  // DELTAFOLD_TOOLS_SYNTHETIC_WEIGHTS_H_
