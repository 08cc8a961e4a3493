// eval/: what a variant keeps of its fine-tune. Input: base, full fine-tunes, deltas and adapters, text and questions;
// output: perplexity, divergence, exact match and how sure they are. Called by `deltafold eval`.
//
// bootstrap.h: intervals of figures that are sums over items, paired where two were measured on the same items.
#ifndef DELTAFOLD_EVAL_BOOTSTRAP_H_
#define DELTAFOLD_EVAL_BOOTSTRAP_H_

#include <cstdint>
#include <span>
#include <vector>

namespace df::eval {

// 95 %: the 2.5th and the 97.5th percentile of the resamples (percentile bootstrap, Efron 1979).
struct Interval {
  double low = 0;
  double high = 0;
};

struct BootstrapOptions {
  uint64_t seed = 1;
  size_t n_resamples = 2000;  // the 50th smallest is the bound: its own noise is 14 % of 2.5 %
};

// What one item (a question, a window of text) adds to a mean: sum / weight over all items is the mean.
struct ItemSum {
  double sum = 0;
  double weight = 0;  // tokens, or 1
};
double MeanOf(std::span<const ItemSum> items);  // 0 without weight

// All: pure; items are drawn with replacement from `options.seed`; at least one item.

// Of sum(a) / weight(a) - sum(b) / weight(b) over the same draws: `a` and `b` are of equal length, item by item.
Interval DifferenceInterval(std::span<const ItemSum> a, std::span<const ItemSum> b, const BootstrapOptions& options);
// Of sum / weight.
Interval MeanInterval(std::span<const ItemSum> items, const BootstrapOptions& options);

// Items of one variant under two codes, item by item.
struct PairedItems {
  std::vector<ItemSum> a, b;
};
// Of the geometric mean over variants of mean(a) / mean(b); the items of each variant are drawn by themselves. `floor`
// stands in for means below it, so that a code without error does not make the ratio 0 or infinite.
double GeometricRatio(std::span<const PairedItems> variants, double floor);
Interval GeometricRatioInterval(std::span<const PairedItems> variants, double floor, const BootstrapOptions& options);

}  // namespace df::eval

#endif  // DELTAFOLD_EVAL_BOOTSTRAP_H_
