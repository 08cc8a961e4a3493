#include "merge/adapter_similarity.h"

#include <cmath>

#include "format/message.h"
#include "merge/each_module.h"

namespace df {
namespace {

std::string ShapeOf(const FactorPair& pair) {
  return std::to_string(pair.d_out()) + " x " + std::to_string(pair.d_in());
}

// The mean over `n_union` modules of cosines in order; others count 0.
double Mean(std::span<const double> cosines, size_t n_union) {
  double sum = 0;
  for (const double cosine : cosines) sum += cosine;
  return n_union == 0 ? 0 : sum / static_cast<double>(n_union);
}

}  // namespace

double Similarity(ThreadPool& pool, const AdapterFactors& first, const AdapterFactors& second) {
  std::vector<std::pair<const FactorPair*, const FactorPair*>> shared;
  for (const auto& [path, pair] : first.modules) {
    const auto other = second.modules.find(path);
    if (other != second.modules.end()) shared.emplace_back(&pair, &other->second);
  }
  const size_t n_union = first.modules.size() + second.modules.size() - shared.size();
  std::vector<double> cosines(shared.size());
  const Status done = EachModule(pool, shared.size(), [&](size_t i) {
    const auto& [x, y] = shared[i];
    const double norms = std::sqrt(x->squared_norm) * std::sqrt(y->squared_norm);
    if (norms > 0) cosines[i] = std::clamp(InnerProduct(*x, *y) / norms, -1.0, 1.0);
    return Status::Ok();
  });
  DF_CHECK(done.ok());
  return Mean(cosines, n_union);
}

Result<double> SimilarityOfStored(ThreadPool& pool, std::span<const StoredFactors> first,
                                  std::span<const double> squared_norms, const AdapterFactors& second) {
  DF_CHECK(squared_norms.size() == first.size());
  std::vector<std::pair<size_t, const FactorPair*>> shared;  // of which of the first, with what
  size_t most_a = 0, most_b = 0;
  for (size_t i = 0; i < first.size(); ++i) {
    const auto other = second.modules.find(first[i].path);
    if (other == second.modules.end()) continue;
    shared.emplace_back(i, &other->second);
    most_a = std::max(most_a, first[i].a.elements());
    most_b = std::max(most_b, first[i].b.elements());
  }
  std::vector<double> cosines(shared.size());
  const size_t grain = std::max<size_t>(1, (shared.size() + linalg::kMaxCallers - 1) / linalg::kMaxCallers);
  pool.ParallelFor(shared.size(), grain, [&](size_t begin, size_t end, size_t) {
    Buffer<float> a(most_a), b(most_b);
    for (size_t j = begin; j < end; ++j) {
      const auto& [i, other] = shared[j];
      const StoredFactors& stored = first[i];
      const double norms = std::sqrt(squared_norms[i]) * std::sqrt(other->squared_norm);
      if (!(norms > 0)) continue;
      ReadInto(stored, a.span().first(stored.a.elements()), b.span().first(stored.b.elements()));
      const FactorViews views{{a.data(), stored.rank(), stored.d_in(), stored.d_in()},
                              {b.data(), stored.d_out(), stored.rank(), stored.rank()}};
      const double inner = InnerProduct(views, {other->a.view(), other->b.view()});
      cosines[j] = std::isfinite(inner) ? std::clamp(inner / norms, -1.0, 1.0) : inner;
    }
  });
  for (size_t j = 0; j < shared.size(); ++j) {
    if (std::isfinite(cosines[j])) continue;
    return Corrupt("module " + Quoted(first[shared[j].first].path) +
                   " has factors that are not finite, or whose product is not");
  }
  return Mean(cosines, first.size() + second.modules.size() - shared.size());
}

Status CheckSameBase(const AdapterFactors& first, const AdapterFactors& second) {
  for (const auto& [path, pair] : first.modules) {
    const auto other = second.modules.find(path);
    if (other == second.modules.end()) continue;
    if (pair.d_out() == other->second.d_out() && pair.d_in() == other->second.d_in()) continue;
    return FailedPrecondition("module " + Quoted(path) + " is " + ShapeOf(other->second) + ", that of the others is " +
                              ShapeOf(pair) + ": the adapters are made for different bases");
  }
  return Status::Ok();
}

}  // namespace df
