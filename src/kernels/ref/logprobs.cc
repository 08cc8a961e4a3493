#include "kernels/ref/logprobs.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/ref/sample.h"
#include "kernels/scratch_slots.h"

namespace df::kernels::ref {
namespace {

LogNormalizer Normalize(std::span<const float> logits) {
  if (!IsServable(logits)) return {};
  const float largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float x : logits) sum += std::exp(double{x} - double{largest});
  return {.largest = largest, .log_mass = static_cast<float>(std::log(sum)), .servable = true};
}

}  // namespace

void TopLogprobs(KernelContext& context, MatView<const float> logits, std::span<const LogprobRow> rows,
                 std::span<LogNormalizer> normalizers) {
  int32_t* order = context.scratch.Get<int32_t>(kSlotSample, logits.cols);
  for (size_t i = 0; i < rows.size(); ++i) {
    const LogprobRow& row = rows[i];
    const std::span<const float> x = {logits.Row(row.row), row.vocab};
    normalizers[i] = Normalize(x);
    if (!normalizers[i].servable || row.n_top == 0) continue;
    SortByLogit(x, {order, row.vocab});
    for (size_t rank = 0; rank < row.n_top; ++rank) {
      row.top[rank] = LogprobOf(logits, row, normalizers[i], order[rank]);
    }
  }
}

}  // namespace df::kernels::ref
