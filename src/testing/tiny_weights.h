// The tiny family in memory, for tests of what runs it.
#ifndef DELTAFOLD_TESTING_TINY_WEIGHTS_H_
#define DELTAFOLD_TESTING_TINY_WEIGHTS_H_

#include <map>
#include <memory>
#include <string>

#include "base/rng.h"
#include "engine/request.h"
#include "model/weights.h"
#include "store/variant_source.h"
#include "testing/tiny_family.h"

namespace df::testing {

struct TinyWeights {
  std::shared_ptr<const BaseWeights> base;
  // "base" (null), "delta1", "delta2", "adapter", and "broken": an adapter with a NaN.
  std::map<std::string, std::shared_ptr<const VariantWeights>> variants{{"base", nullptr}};
};

inline TinyWeights LoadTinyWeights() {
  const TemporaryDirectory directory("deltafold-tiny-weights");
  WriteTinyBase(directory / "base", 1);
  WriteTinyDelta(directory / "delta1", directory / "base", 2);
  WriteTinyDelta(directory / "delta2", directory / "base", 3);
  WriteTinyAdapter(directory / "adapter", {.seed = 4});
  WriteTinyAdapter(directory / "broken", {.seed = 5, .broken = true});
  KernelContext context(1);
  TinyWeights weights;
  weights.base = ValueOrDie(LoadBase(context, ValueOrDie(Checkpoint::Open(directory / "base"))));
  for (const std::string name : {"delta1", "delta2", "adapter", "broken"}) {
    weights.variants[name] = ValueOrDie(LoadVariantWeights(context, *weights.base, directory / name));
  }
  return weights;
}

// A greedy request with a fixed random prompt of that length.
inline GenerationRequest TinyRequest(const TinyWeights& weights, const std::string& id, const std::string& variant,
                                     size_t n_prompt) {
  GenerationRequest request;
  request.id = id;
  request.variant = FixedGeneration(weights.variants.at(variant));
  request.variant_name = variant;
  for (size_t i = 0; i < n_prompt; ++i) {
    request.prompt.push_back(static_cast<int32_t>(RandomBits(n_prompt, i) % kTinyVocab));
  }
  request.params.temperature = 0.0;
  request.events = std::make_shared<EventQueue>();
  return request;
}

}  // namespace df::testing

#endif  // DELTAFOLD_TESTING_TINY_WEIGHTS_H_
