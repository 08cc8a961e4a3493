#include "merge/slerp.h"

#include <algorithm>
#include <cmath>

#include "codec/row_ops.h"
#include "merge/elementwise.h"

namespace df::merge {
namespace {

constexpr double kNearlyParallel = 0.9995;
constexpr double kSmallestNorm = 1e-8;

// |a|^2, <a, b> and |b|^2 over all elements.
ErrorSums Products(ThreadPool& pool, const TensorGroup& group) {
  const size_t n = group.models[0].elements();
  Buffer<ErrorSums> of_block((n + kBlock - 1) / kBlock);
  ForEachBlock(pool, n, [&](size_t first, size_t size) {
    std::vector<float> a(size), b(size);
    ReadElements(group.models[0], first, a);
    ReadElements(group.models[1], first, b);
    of_block[first / kBlock] = row_ops::SumErrors(a, b);
  });
  ErrorSums sums;
  for (const ErrorSums& block : of_block.span()) sums.Add(block);
  return sums;
}

std::vector<double> Coefficients(const ErrorSums& products, double t) {
  const auto norm = [](double squares) { return squares > kSmallestNorm * kSmallestNorm ? std::sqrt(squares) : 1.0; };
  const double cosine = std::clamp(products.cross / (norm(products.difference) * norm(products.error)), -1.0, 1.0);
  if (std::fabs(cosine) > kNearlyParallel) return {1 - t, t};
  const double angle = std::acos(cosine);
  return {std::sin((1 - t) * angle) / std::sin(angle), std::sin(t * angle) / std::sin(angle)};
}

}  // namespace

Result<Report> MergeSlerp(ThreadPool& pool, const TensorGroup& group, const Settings& settings, const Sink& sink) {
  const TensorGroup models{.name = group.name, .models = group.models, .model_names = group.model_names};
  const ErrorSums products = Products(pool, models);
  if (!std::isfinite(products.difference) || !std::isfinite(products.error)) return FindNonFinite(models);
  return MergeElementwise(pool, models, {.coefficients = Coefficients(products, settings.t)}, sink);
}

}  // namespace df::merge
