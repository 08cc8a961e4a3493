#include "kernels/sample.h"

#include <limits>

#include "kernels/cpu/sample.h"
#include "kernels/ref/sample.h"
#include "kernels/target.h"

namespace df::kernels {

void Forbid(MatView<float> logits, size_t row, std::span<const int32_t> tokens) {
  for (const int32_t token : tokens) {
    logits.Row(row)[static_cast<size_t>(token)] = -std::numeric_limits<float>::infinity();
  }
}

void Sample(KernelContext& context, MatView<const float> logits, std::span<const SampleRow> rows,
            std::span<Sampled> results) {
  (IsScalarTarget() ? ref::Sample : cpu::Sample)(context, logits, rows, results);
}

void LogSoftmax(KernelContext& context, MatView<const float> logits, MatView<float> out) {
  (IsScalarTarget() ? ref::LogSoftmax : cpu::LogSoftmax)(context, logits, out);
}

}  // namespace df::kernels
