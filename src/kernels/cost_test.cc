#include "kernels/cost.h"

#include <gtest/gtest.h>

#include <vector>

#include "kernels/cpu/linear_plan.h"
#include "kernels/linear_fixture.h"
#include "kernels/linear_path.h"

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
constexpr KernelOptions kInvariant = {.batch_invariant = true}, kByCost = {.batch_invariant = false};

TEST(LinearCost, ReadsTheBaseOnceForAllDecodeRows) {
  const Layer layer;
  const LinearSegment segments[] = {{.begin = 0, .end = 3, .phase = Phase::kDecode, .delta = nullptr},
                                    {.begin = 3, .end = 4, .phase = Phase::kDecode, .delta = &layer.signs},
                                    {.begin = 4, .end = 6, .phase = Phase::kDecode, .delta = &layer.lora}};
  const Cost cost = LinearCost(kInvariant, layer.base, segments);
  EXPECT_EQ(cost.bytes, kBaseBytes + kSignBytes + (2 * 32 + 64 * 2) * 2 + 6 * kRowBytes);
  EXPECT_EQ(cost.flops, 6 * kRowFlops + 64 * 32 / 4 + 2 * 2 * 2 * (32 + 64));
}

TEST(LinearCost, ReadsTheBaseOnceMoreWherePrefillFoldsSigns) {
  const Layer layer;
  const LinearSegment segments[] = {{.begin = 0, .end = 3, .phase = Phase::kPrefill, .delta = nullptr},
                                    {.begin = 3, .end = 9, .phase = Phase::kPrefill, .delta = &layer.signs},
                                    {.begin = 9, .end = 9, .phase = Phase::kDecode, .delta = nullptr}};
  const Cost cost = LinearCost(kInvariant, layer.base, segments);
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
    EXPECT_EQ(LinearCost(kInvariant, layer.base, segments).flops, 4 * kRowFlops + 3 * 2 * 3 * 32 + 2 * 2 * 32);
  }
}

TEST(LinearCost, FollowsRowsThatChangeTheirPath) {
  const Layer layer;
  // Many rows of one variant are folded, a few prefill rows ride on the base's one reading.
  const LinearSegment segments[] = {{.begin = 0, .end = 16, .phase = Phase::kDecode, .delta = &layer.signs},
                                    {.begin = 16, .end = 20, .phase = Phase::kPrefill, .delta = &layer.signs},
                                    {.begin = 20, .end = 21, .phase = Phase::kDecode, .delta = nullptr}};
  const Cost by_cost = LinearCost(kByCost, layer.base, segments);
  EXPECT_EQ(by_cost.bytes, 2 * kBaseBytes + 2 * kSignBytes + 21 * kRowBytes);
  EXPECT_EQ(by_cost.flops, 21 * kRowFlops + 64 * 32 + 4 * 64 * 32 / 4);
  const Cost invariant = LinearCost(kInvariant, layer.base, segments);
  EXPECT_EQ(invariant.flops, 21 * kRowFlops + 16 * 64 * 32 / 4 + 64 * 32);
}

// What the kernels' own plan of a call reads and adds.
Cost CostOfPlan(const cpu::LinearPlan& plan, const LinearWeight& base) {
  Cost cost;
  for (size_t i = 0; i < plan.decode.size() + plan.prefill.size(); ++i) {
    const cpu::LinearSet& set = plan.Set(i);
    if (set.weight == &base.weight) cost.bytes += static_cast<double>(base.weight.bytes());
    if (set.signs != nullptr) cost.flops += static_cast<double>(set.signs->planes.size() * 64 * 32);
    cost.flops += static_cast<double>(set.items.size() * 64 * 32) / 4;
    for (const cpu::LinearRun& run : set.runs) {
      cost.flops += static_cast<double>(run.n_rows) * kRowFlops;
      cost.bytes += static_cast<double>(run.n_rows) * kRowBytes;
    }
  }
  return cost;
}

TEST(LinearCost, IsThatOfTheKernelsPlan) {
  Layer layer;
  const PackedDelta two = PackDelta(layer.context, RandomDelta(layer.store, 64, 32, {.planes = 2}));
  const PackedDelta raw = PackDelta(layer.context, RandomDelta(layer.store, 64, 32, {.planes = 1, .raw = true}));
  const PackedDelta* const deltas[] = {nullptr, &layer.signs, &two, &raw};
  Mat<float> x(200, 32), y(200, 64);
  for (size_t trial = 0; trial < 200; ++trial) {
    std::vector<LinearSegment> segments;
    double delta_bytes = 0;
    size_t row = 0;
    while (segments.size() < 1 + trial % 5) {
      // Up to 24 rows: on both sides of every threshold, and of one set of panels.
      const size_t n = layer.store.Draw() % 25;
      const PackedDelta* delta = deltas[layer.store.Draw() % 4];
      segments.push_back({.begin = row,
                          .end = row + n,
                          .phase = layer.store.Draw() % 2 == 0 ? Phase::kDecode : Phase::kPrefill,
                          .delta = delta});
      row += n;
      if (delta != nullptr && n > 0) delta_bytes += DeltaBytes(*delta);
    }
    for (const KernelOptions& options : {kInvariant, kByCost}) {
      const cpu::LinearPlan plan =
          cpu::MakePlan(layer.context, {.max_decode_group = 5, .max_prefill_group = 6, .paths = PathsFor(options)},
                        {.base = &layer.base, .segments = segments, .x = x.Rows(0, row), .y = y.Rows(0, row)});
      const Cost planned = CostOfPlan(plan, layer.base), counted = LinearCost(options, layer.base, segments);
      EXPECT_EQ(counted.bytes, planned.bytes + delta_bytes) << trial;
      EXPECT_EQ(counted.flops, planned.flops) << trial;
      size_t n_products = 0;
      for (const cpu::LinearSet& set : plan.decode) n_products += set.items.size();
      EXPECT_EQ(CountSignProducts(PathsFor(options), segments), n_products) << trial;
    }
  }
}

}  // namespace
}  // namespace df::kernels
