// Highway implementation of sample.h, for the vector target in force.
#ifndef DELTAFOLD_KERNELS_CPU_SAMPLE_H_
#define DELTAFOLD_KERNELS_CPU_SAMPLE_H_

#include "kernels/sample.h"

namespace df::kernels::cpu {

void Sample(KernelContext& context, MatView<const float> logits, std::span<const SampleRow> rows,
            std::span<Sampled> results);
void LogSoftmax(KernelContext& context, MatView<const float> logits, MatView<float> out);

}  // namespace df::kernels::cpu

#endif  // DELTAFOLD_KERNELS_CPU_SAMPLE_H_
