// From logits to a token: greedy, or temperature, top-k and top-p with a counter-based random draw.
//
// Semantics as in vLLM: temperature 0 is greedy (lowest index among equals); otherwise p = softmax(logits /
// temperature) over the k largest logits (ties at the k-th all stay), then the smallest set whose probability, taken
// from the top, reaches top_p (at least one). The draw is RandomUnit(seed, draw): a function of the request alone.
#ifndef DELTAFOLD_KERNELS_SAMPLE_H_
#define DELTAFOLD_KERNELS_SAMPLE_H_

#include <cstdint>
#include <span>

#include "tensor/kernel_context.h"
#include "tensor/mat.h"

namespace df::kernels {

// A temperature below this is greedy, as 0 is (vLLM's bound): dividing by it would only overflow.
inline constexpr float kGreedyTemperature = 1e-5F;

struct SampleRow {
  size_t row = 0;            // of logits
  size_t vocab = 0;          // columns that count (the variant's vocabulary), >= 1
  float temperature = 0.0F;  // >= 0
  int32_t top_k = 0;         // 0 or >= vocab = off
  float top_p = 1.0F;        // in (0, 1]
  uint64_t seed = 0;
  uint64_t draw = 0;  // index of the generated token
};

struct Sampled {
  int32_t token = -1;  // -1: the row holds a NaN or +Inf, or no finite logit
};

// logits[row][token] = -Inf for each of `tokens`, all below logits.cols: Sample never draws them.
void Forbid(MatView<float> logits, size_t row, std::span<const int32_t> tokens);

// One result per row. The vocabulary is never sorted whole. Threads split the rows.
void Sample(KernelContext& context, MatView<const float> logits, std::span<const SampleRow> rows,
            std::span<Sampled> results);

// out[j] = log softmax(logits[row][0..vocab))[j].
void LogSoftmax(KernelContext& context, MatView<const float> logits, MatView<float> out);

}  // namespace df::kernels

#endif  // DELTAFOLD_KERNELS_SAMPLE_H_
