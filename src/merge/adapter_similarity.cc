#include "merge/adapter_similarity.h"

#include <cmath>

#include "format/message.h"
#include "merge/each_module.h"

namespace df {
namespace {

std::string ShapeOf(const FactorPair& pair) {
  return std::to_string(pair.d_out()) + " x " + std::to_string(pair.d_in());
}

}  // namespace

double Similarity(ThreadPool& pool, const AdapterFactors& first, const AdapterFactors& second) {
  std::vector<std::pair<const FactorPair*, const FactorPair*>> shared;
  for (const auto& [path, pair] : first.modules) {
    const auto other = second.modules.find(path);
    if (other != second.modules.end()) shared.emplace_back(&pair, &other->second);
  }
  const size_t n_union = first.modules.size() + second.modules.size() - shared.size();
  if (n_union == 0) return 0;
  std::vector<double> cosines(shared.size());
  const Status done = EachModule(pool, shared.size(), [&](size_t i) {
    const auto& [x, y] = shared[i];
    const double norms = std::sqrt(x->squared_norm) * std::sqrt(y->squared_norm);
    if (norms > 0) cosines[i] = std::clamp(InnerProduct(*x, *y) / norms, -1.0, 1.0);
    return Status::Ok();
  });
  DF_CHECK(done.ok());
  double sum = 0;
  for (const double cosine : cosines) sum += cosine;
  return sum / static_cast<double>(n_union);
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
