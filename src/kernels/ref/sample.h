// Scalar oracle of sample.h: sorts the whole vocabulary, sums in f64.
#ifndef DELTAFOLD_KERNELS_REF_SAMPLE_H_
#define DELTAFOLD_KERNELS_REF_SAMPLE_H_

#include "kernels/sample.h"

namespace df::kernels::ref {

// No NaN, no +Inf, at least one finite logit.
bool IsServable(std::span<const float> logits);
// All tokens [logits.size()], the most likely first; among equals the lower index.
void SortByLogit(std::span<const float> logits, std::span<int32_t> order);

void Sample(KernelContext& context, MatView<const float> logits, std::span<const SampleRow> rows,
            std::span<Sampled> results);
void LogSoftmax(KernelContext& context, MatView<const float> logits, MatView<float> out);

}  // namespace df::kernels::ref

#endif  // DELTAFOLD_KERNELS_REF_SAMPLE_H_
