#include "kernels/cost.h"

#include <gtest/gtest.h>

#include "kernels/linear_fixture.h"

namespace df::kernels {
namespace {

struct Layer {
  Layer() : store(1), context(1) {
    base.weight = PackWeight(context, store.Random(DType::kBf16, {64, 32}, -1.0F, 1.0F));
    signs = PackDelta(context, RandomDelta(store, 64, 32, {.planes = 1}));
    lora = PackDelta(context, RandomDelta(store, 64, 32, {.ranks = {2}}));
  }
  TensorStore store;
  KernelContext context;
  LinearWeight base;
  PackedDelta signs;
  PackedDelta lora;
};

constexpr double kBaseBytes = 64 * 32 * 2;
constexpr double kSignBytes = 64 * 32 / 8 + 64 * 4;
constexpr double kRowBytes = (64 + 32) * 4;
constexpr double kRowFlops = 2 * 64 * 32;

TEST(LinearCost, ReadsTheBaseOnceForAllDecodeRows) {
  const Layer layer;
  const LinearSegment segments[] = {{.begin = 0, .end = 3, .phase = Phase::kDecode, .delta = nullptr},
                                    {.begin = 3, .end = 4, .phase = Phase::kDecode, .delta = &layer.signs},
                                    {.begin = 4, .end = 6, .phase = Phase::kDecode, .delta = &layer.lora}};
  const Cost cost = LinearCost(layer.base, segments);
  EXPECT_EQ(cost.bytes, kBaseBytes + kSignBytes + (2 * 32 + 64 * 2) * 2 + 6 * kRowBytes);
  EXPECT_EQ(cost.flops, 6 * kRowFlops + 64 * 32 + 2 * 2 * 2 * (32 + 64));
}

TEST(LinearCost, ReadsTheBaseOnceMoreWherePrefillFoldsSigns) {
  const Layer layer;
  const LinearSegment segments[] = {{.begin = 0, .end = 3, .phase = Phase::kPrefill, .delta = nullptr},
                                    {.begin = 3, .end = 9, .phase = Phase::kPrefill, .delta = &layer.signs},
                                    {.begin = 9, .end = 9, .phase = Phase::kDecode, .delta = nullptr}};
  const Cost cost = LinearCost(layer.base, segments);
  EXPECT_EQ(cost.bytes, 2 * kBaseBytes + kSignBytes + 9 * kRowBytes);
  EXPECT_EQ(cost.flops, 9 * kRowFlops + 64 * 32);
}

TEST(LinearCost, CountsTheProductsOfRowsOfTheirOwn) {
  Layer layer;
  const PackedDelta bytes = PackDelta(layer.context, RandomDelta(layer.store, 64, 32, {.byte_rows = {1, 5, 60}}));
  const PackedDelta rows = PackDelta(layer.context, RandomDelta(layer.store, 64, 32, {.rows = {7, 9}}));
  for (const Phase phase : {Phase::kDecode, Phase::kPrefill}) {
    const LinearSegment segments[] = {{.begin = 0, .end = 3, .phase = phase, .delta = &bytes},
                                      {.begin = 3, .end = 4, .phase = phase, .delta = &rows}};
    EXPECT_EQ(LinearCost(layer.base, segments).flops, 4 * kRowFlops + 3 * 2 * 3 * 32 + 2 * 2 * 32);
  }
}

}  // namespace
}  // namespace df::kernels
