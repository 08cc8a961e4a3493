#include "merge/dare.h"

#include <cmath>

#include "base/rng.h"
#include "merge/elementwise.h"

namespace df::merge {
namespace {

uint64_t KeyOf(const std::string& name, uint64_t seed, size_t model) {
  uint64_t key = MixBits(seed);
  for (const char c : name) key = MixBits(key ^ static_cast<unsigned char>(c));
  return RandomBits(key, model);
}

// Drops by the settings' densities; `rule` has the coefficients of whole differences.
ElementwiseRule WithDrops(const TensorGroup& group, const Settings& settings, ElementwiseRule rule) {
  std::vector<uint64_t> keys;
  for (size_t i = 0; i < group.models.size(); ++i) {
    keys.push_back(KeyOf(group.name, settings.seed, i));
    if (settings.rescale) rule.coefficients[i] /= settings.densities[i];
  }
  rule.prune = [keys, densities = settings.densities](size_t model, size_t first, std::span<float> d) {
    if (densities[model] >= 1) return;
    // A draw counts to 2^32, and no run of elements crosses a multiple of that: further ones have keys of their own.
    const uint64_t key = RandomBits(keys[model], first >> 32);
    element_ops::Drop(key, first & 0xFFFFFFFFu, static_cast<uint32_t>(densities[model] * 0x1p32), d);
  };
  return rule;
}

}  // namespace

Result<Report> MergeDareLinear(ThreadPool& pool, const TensorGroup& group, const Settings& settings, const Sink& sink) {
  return MergeElementwise(pool, group, WithDrops(group, settings, {.coefficients = TaskCoefficients(settings)}), sink);
}

Result<Report> MergeDareTies(ThreadPool& pool, const TensorGroup& group, const Settings& settings, const Sink& sink) {
  ElementwiseRule rule{.coefficients = settings.weights, .has_consensus = true, .lambda = settings.lambda};
  if (settings.normalize) rule.divisors = settings.weights;
  return MergeElementwise(pool, group, WithDrops(group, settings, std::move(rule)), sink);
}

}  // namespace df::merge
