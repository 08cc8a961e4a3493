#include "kernels/logprobs.h"

#include "kernels/cpu/logprobs.h"
#include "kernels/ref/logprobs.h"
#include "kernels/target.h"

namespace df::kernels {

void TopLogprobs(KernelContext& context, MatView<const float> logits, std::span<const LogprobRow> rows,
                 std::span<LogNormalizer> normalizers) {
  (IsScalarTarget() ? ref::TopLogprobs : cpu::TopLogprobs)(context, logits, rows, normalizers);
}

TokenLogprob LogprobOf(MatView<const float> logits, const LogprobRow& row, const LogNormalizer& normalizer,
                       int32_t token) {
  const float logit = logits.Row(row.row)[static_cast<size_t>(token)];
  return {.token = token, .logprob = (logit - normalizer.largest) - normalizer.log_mass};
}

}  // namespace df::kernels
