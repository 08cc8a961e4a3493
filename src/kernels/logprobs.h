// From logits to log-probabilities: those of given tokens, and the most likely tokens of a row.
//
//   log p(j) = (x_j - max x) - log sum_i exp(x_i - max x)     over the row's first `vocab` logits
//
// of the logits as the model gives them: without temperature, top-k, top-p or masks (vLLM's raw_logprobs). A row's
// results depend on its own logits alone: the order of the sum is fixed by the size.
#ifndef DELTAFOLD_KERNELS_LOGPROBS_H_
#define DELTAFOLD_KERNELS_LOGPROBS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "tensor/kernel_context.h"
#include "tensor/mat.h"

namespace df::kernels {

struct TokenLogprob {
  int32_t token = -1;
  float logprob = 0.0F;
};

struct LogprobRow {
  size_t row = 0;               // of logits
  size_t vocab = 0;             // columns that count (the variant's vocabulary), >= 1
  size_t n_top = 0;             // <= vocab
  TokenLogprob* top = nullptr;  // [n_top] written: the most likely ones, likeliest first, among equals the lower index
};

// What turns a logit of its row into a log-probability.
struct LogNormalizer {
  float largest = 0.0F;
  float log_mass = 0.0F;
  bool servable = false;  // the row holds no NaN and no +Inf, and a finite logit; else nothing of it means anything
};

// Fills the `top` of each row and normalizers [rows.size()]. The vocabulary is never sorted whole. Threads split the
// rows.
void TopLogprobs(KernelContext& context, MatView<const float> logits, std::span<const LogprobRow> rows,
                 std::span<LogNormalizer> normalizers);

// Of `token` < row.vocab, with what TopLogprobs gave for this row.
TokenLogprob LogprobOf(MatView<const float> logits, const LogprobRow& row, const LogNormalizer& normalizer,
                       int32_t token);

}  // namespace df::kernels

#endif  // DELTAFOLD_KERNELS_LOGPROBS_H_
