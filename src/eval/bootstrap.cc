#include "eval/bootstrap.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/rng.h"

namespace df::eval {
namespace {

// Linear between the two nearest ranks.
double PercentileOfSorted(const std::vector<double>& sorted, double share) {
  const double rank = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(rank);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above], rank - static_cast<double>(below));
}

Interval IntervalOf(std::vector<double> resamples) {
  std::sort(resamples.begin(), resamples.end());
  return {.low = PercentileOfSorted(resamples, 0.025), .high = PercentileOfSorted(resamples, 0.975)};
}

double Quotient(const ItemSum& total) { return total.weight > 0 ? total.sum / total.weight : 0; }

void Add(ItemSum& total, const ItemSum& item) {
  total.sum += item.sum;
  total.weight += item.weight;
}

// Draws the items of one variant: the same ones for both sides of a pair.
class Draws {
 public:
  explicit Draws(uint64_t seed) : seed_(seed) {}
  size_t Next(size_t n) { return static_cast<size_t>(RandomBits(seed_, k_++) % n); }

 private:
  uint64_t seed_;
  uint64_t k_ = 0;
};

struct PairOfMeans {
  double a = 0, b = 0;
};

PairOfMeans DrawMeans(std::span<const ItemSum> a, std::span<const ItemSum> b, Draws& draws) {
  ItemSum sum_a, sum_b;
  for (size_t i = 0; i < a.size(); ++i) {
    const size_t item = draws.Next(a.size());
    Add(sum_a, a[item]);
    Add(sum_b, b[item]);
  }
  return {.a = Quotient(sum_a), .b = Quotient(sum_b)};
}

double LogRatio(const PairOfMeans& means, double floor) {
  return std::log(std::max(means.a, floor) / std::max(means.b, floor));
}

}  // namespace

double MeanOf(std::span<const ItemSum> items) {
  ItemSum total;
  for (const ItemSum& item : items) Add(total, item);
  return Quotient(total);
}

Interval DifferenceInterval(std::span<const ItemSum> a, std::span<const ItemSum> b, const BootstrapOptions& options) {
  DF_CHECK(!a.empty() && a.size() == b.size() && options.n_resamples > 0);
  Draws draws(options.seed);
  std::vector<double> resamples(options.n_resamples);
  for (double& difference : resamples) {
    const PairOfMeans means = DrawMeans(a, b, draws);
    difference = means.a - means.b;
  }
  return IntervalOf(std::move(resamples));
}

Interval MeanInterval(std::span<const ItemSum> items, const BootstrapOptions& options) {
  DF_CHECK(!items.empty() && options.n_resamples > 0);
  Draws draws(options.seed);
  std::vector<double> resamples(options.n_resamples);
  for (double& mean : resamples) mean = DrawMeans(items, items, draws).a;
  return IntervalOf(std::move(resamples));
}

double GeometricRatio(std::span<const PairedItems> variants, double floor) {
  DF_CHECK(!variants.empty());
  double sum = 0;
  for (const PairedItems& items : variants) sum += LogRatio({.a = MeanOf(items.a), .b = MeanOf(items.b)}, floor);
  return std::exp(sum / static_cast<double>(variants.size()));
}

Interval GeometricRatioInterval(std::span<const PairedItems> variants, double floor, const BootstrapOptions& options) {
  DF_CHECK(!variants.empty() && options.n_resamples > 0);
  Draws draws(options.seed);
  std::vector<double> resamples(options.n_resamples);
  for (double& ratio : resamples) {
    double sum = 0;
    for (const PairedItems& items : variants) {
      DF_CHECK(!items.a.empty() && items.a.size() == items.b.size());
      sum += LogRatio(DrawMeans(items.a, items.b, draws), floor);
    }
    ratio = std::exp(sum / static_cast<double>(variants.size()));
  }
  return IntervalOf(std::move(resamples));
}

}  // namespace df::eval
