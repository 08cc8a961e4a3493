// Implementation of logprobs.h over the vector passes of sample_scan.h.
#ifndef DELTAFOLD_KERNELS_CPU_LOGPROBS_H_
#define DELTAFOLD_KERNELS_CPU_LOGPROBS_H_

#include "kernels/logprobs.h"

namespace df::kernels::cpu {

void TopLogprobs(KernelContext& context, MatView<const float> logits, std::span<const LogprobRow> rows,
                 std::span<LogNormalizer> normalizers);

}  // namespace df::kernels::cpu

#endif  // DELTAFOLD_KERNELS_CPU_LOGPROBS_H_
