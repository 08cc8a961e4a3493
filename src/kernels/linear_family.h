// A base layer with variants, stored and packed, and every target in turn: what the tests of linear.h share.
#ifndef DELTAFOLD_KERNELS_LINEAR_FAMILY_H_
#define DELTAFOLD_KERNELS_LINEAR_FAMILY_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/linear_fixture.h"
#include "kernels/target.h"

namespace df::kernels {

// A base layer with some variants of it, stored and packed.
struct Family {
  Family(size_t d_out, size_t d_in, DType dtype, bool with_bias, uint64_t seed,
         const KernelOptions& options = {.sign_kernel = SignKernel::kExact, .batch_invariant = false})
      : store(seed), context(1, options), threads(2, options) {
    weight = store.Random(dtype, {d_out, d_in}, -0.1F, 0.1F);
    base.weight = PackWeight(context, weight);
    if (!with_bias) return;
    bias = store.Random(DType::kF32, {d_out}, -1.0F, 1.0F);
    base.bias = Buffer<float>(d_out);
    ReadFloats(*bias, 0, base.bias.span());
  }

  // Index of the new variant; `d_out` may differ from the base's.
  size_t Add(size_t d_out, const DeltaShape& shape) {
    stored.push_back(std::make_unique<LinearDelta>(RandomDelta(store, d_out, base.weight.d_in, shape)));
    packed.push_back(std::make_unique<PackedDelta>(PackDelta(context, *stored.back())));
    return stored.size() - 1;
  }
  size_t Add(const DeltaShape& shape) { return Add(base.weight.d_out, shape); }

  // variant -1 = base
  ExactLinear Exact(int variant) const {
    return {weight, bias ? &*bias : nullptr, variant < 0 ? nullptr : stored[static_cast<size_t>(variant)].get()};
  }
  const PackedDelta* Packed(int variant) const {
    return variant < 0 ? nullptr : packed[static_cast<size_t>(variant)].get();
  }
  size_t MaxOut() const {
    size_t n = base.weight.d_out;
    for (const auto& delta : stored) n = std::max(n, delta->d_out);
    return n;
  }

  TensorStore store;
  // One of each for all calls: on a busy machine a thread takes longer to start than these products.
  KernelContext context;
  KernelContext threads;
  TensorView weight;
  std::optional<TensorView> bias;
  LinearWeight base;
  std::vector<std::unique_ptr<LinearDelta>> stored;
  std::vector<std::unique_ptr<PackedDelta>> packed;
};

template <typename Body>
void OnEveryTarget(const Body& body) {
  for (const std::string& target : AvailableTargets()) {
    ASSERT_TRUE(SetTarget(target).ok());
    body(target);
  }
  ASSERT_TRUE(SetTarget("auto").ok());
}

}  // namespace df::kernels

#endif  // DELTAFOLD_KERNELS_LINEAR_FAMILY_H_
