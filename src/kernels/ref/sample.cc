#include "kernels/ref/sample.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/rng.h"
#include "kernels/scratch_slots.h"

namespace df::kernels::ref {

bool IsServable(std::span<const float> logits) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  bool any_finite = false;
  for (const float x : logits) {
    if (std::isnan(x) || x == kInfinity) return false;
    any_finite = any_finite || x != -kInfinity;
  }
  return any_finite;
}

void SortByLogit(std::span<const float> logits, std::span<int32_t> order) {
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)];
    const float y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  });
}

namespace {

// Logits, their order and the weights exp((logit - largest) / temperature), all of one row.
struct Distribution {
  std::span<const float> logits;
  std::span<const int32_t> order;
  double temperature = 1;

  double Weight(size_t rank) const {
    const double top = logits[static_cast<size_t>(order[0])];
    return std::exp((double{logits[static_cast<size_t>(order[rank])]} - top) / temperature);
  }
  double Mass(size_t n) const {
    double sum = 0;
    for (size_t rank = 0; rank < n; ++rank) sum += Weight(rank);
    return sum;
  }
};

// How many of the sorted tokens stay.
size_t KeptCount(const Distribution& p, const SampleRow& row) {
  size_t kept = row.vocab;
  if (row.top_k > 0 && static_cast<size_t>(row.top_k) < row.vocab) {
    kept = static_cast<size_t>(row.top_k);
    const float kth = p.logits[static_cast<size_t>(p.order[kept - 1])];
    while (kept < row.vocab && p.logits[static_cast<size_t>(p.order[kept])] == kth) ++kept;
  }
  if (row.top_p >= 1.0F) return kept;
  const double target = double{row.top_p} * p.Mass(kept);
  double sum = 0;
  for (size_t rank = 0; rank < kept; ++rank) {
    sum += p.Weight(rank);
    if (sum >= target) return rank + 1;
  }
  return kept;
}

// The first token, in order of index, whose running weight exceeds RandomUnit times the whole.
int32_t Draw(const Distribution& p, std::span<int32_t> order, const SampleRow& row) {
  const size_t kept = KeptCount(p, row);
  const double target = RandomUnit(row.seed, row.draw) * p.Mass(kept);
  const double top = p.logits[static_cast<size_t>(order[0])];
  std::sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(kept));
  double sum = 0;
  int32_t last = -1;
  for (const int32_t token : order.first(kept)) {
    const double weight = std::exp((double{p.logits[static_cast<size_t>(token)]} - top) / p.temperature);
    if (weight > 0) last = token;
    sum += weight;
    if (sum > target) return token;
  }
  return last;
}

int32_t SampleToken(std::span<const float> logits, const SampleRow& row, std::span<int32_t> order) {
  if (!IsServable(logits)) return -1;
  if (row.temperature < kGreedyTemperature) {
    return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }
  SortByLogit(logits, order);
  return Draw({.logits = logits, .order = order, .temperature = double{row.temperature}}, order, row);
}

}  // namespace

void Sample(KernelContext& context, MatView<const float> logits, std::span<const SampleRow> rows,
            std::span<Sampled> results) {
  int32_t* order = context.scratch.Get<int32_t>(kSlotSample, logits.cols);
  for (size_t i = 0; i < rows.size(); ++i) {
    const SampleRow& row = rows[i];
    results[i].token = SampleToken({logits.Row(row.row), row.vocab}, row, {order, row.vocab});
  }
}

void LogSoftmax(KernelContext& /*context*/, MatView<const float> logits, MatView<float> out) {
  for (size_t row = 0; row < logits.rows; ++row) {
    const std::span<const float> x = logits.RowSpan(row);
    const double largest = *std::max_element(x.begin(), x.end());
    double sum = 0;
    for (const float value : x) sum += std::exp(double{value} - largest);
    for (size_t i = 0; i < x.size(); ++i) {
      out.Row(row)[i] = static_cast<float>(double{x[i]} - largest - std::log(sum));
    }
  }
}

}  // namespace df::kernels::ref
