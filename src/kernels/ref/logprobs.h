// Scalar oracle of logprobs.h: sorts the whole vocabulary, sums in f64.
#ifndef DELTAFOLD_KERNELS_REF_LOGPROBS_H_
#define DELTAFOLD_KERNELS_REF_LOGPROBS_H_

#include "kernels/logprobs.h"

namespace df::kernels::ref {

void TopLogprobs(KernelContext& context, MatView<const float> logits, std::span<const LogprobRow> rows,
                 std::span<LogNormalizer> normalizers);

}  // namespace df::kernels::ref

#endif  // DELTAFOLD_KERNELS_REF_LOGPROBS_H_
