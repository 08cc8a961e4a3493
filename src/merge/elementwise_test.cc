#include "merge/elementwise.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "merge/magnitude_cut.h"
#include "merge/merge_fixture.h"
#include "testing/refusal.h"

namespace df::merge {
namespace {

// More than one block, the last one short, and no multiple of a vector.
constexpr size_t kSize = 2 * kBlock + 4099;

// A base and fine-tunes near it, of the type that is named.
struct Family {
  explicit Family(DType dtype, size_t n_models, size_t n = kSize, double change = 0.1)
      : base(Shape{n}, RandomValues(n, 1), dtype) {
    for (size_t i = 0; i < n_models; ++i) {
      models.emplace_back(Shape{n}, Sum(base.values(), RandomValues(n, 2 + i, change)), dtype);
    }
  }
  TensorGroup Group() const {
    TensorGroup group{.name = "w", .base = base.view()};
    for (const Stored& model : models) group.models.push_back(model.view());
    return group;
  }
  Stored base;
  std::vector<Stored> models;
};

TEST(Linear, IsTheWeightedMeanRoundedOnceForEveryStoredType) {
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
    const Family family(dtype, 3);
    const Merged merged = MergeOrDie("linear", family.Group(), {{"weight", {2, 3, 5}}});
    const std::vector<float> a = family.models[0].values(), b = family.models[1].values(),
                             c = family.models[2].values();
    for (size_t i = 0; i < kSize; ++i) {
      const double mean = 0.2 * double{a[i]} + 0.3 * double{b[i]} + 0.5 * double{c[i]};
      // Half an ulp of f32, and the three products' rounding in f64.
      ASSERT_NEAR(merged.values[i], mean, std::fabs(mean) * 0x1p-24 + 1e-15) << i;
    }
    EXPECT_NEAR(std::sqrt(merged.report.task_squares[1]), Norm(b), 1e-12 * Norm(b));
    EXPECT_NEAR(std::sqrt(merged.report.result_squares), Norm(merged.values), 1e-12 * Norm(b));
    EXPECT_EQ(merged.report.coefficients, (std::vector<double>{0.2, 0.3, 0.5}));
  }
}

TEST(Linear, TakesWeightsAsTheyAreWithoutNormalising) {
  const Family family(DType::kF32, 2);
  const Merged merged = MergeOrDie("linear", family.Group(), {{"weight", {1, -1}}, {"normalize", {0}}});
  std::vector<float> expected = family.models[0].values();
  const std::vector<float> b = family.models[1].values();
  for (size_t i = 0; i < kSize; ++i) expected[i] -= b[i];
  EXPECT_EQ(LargestDistance(merged.values, expected), 0);
  testing::ExpectRefusal(TryMerge("linear", family.Group(), {{"weight", {1, -1}}}), StatusCode::kInvalidArgument,
                         {"tensor w", "sum to", "normalize: false"});
}

TEST(TaskArithmetic, AddsWeightedDifferences) {
  const Family family(DType::kBf16, 2);
  const std::vector<float> base = family.base.values(), a = family.models[0].values(), b = family.models[1].values();
  const auto expect = [&](const Parameters& parameters, double of_a, double of_b) {
    const Merged merged = MergeOrDie("task_arithmetic", family.Group(), parameters);
    for (size_t i = 0; i < kSize; ++i) {
      const double from{base[i]}, sum = from + of_a * (double{a[i]} - from) + of_b * (double{b[i]} - from);
      ASSERT_NEAR(merged.values[i], sum, 0x1p-23) << i;
    }
  };
  expect({{"weight", {0.5, 1.5}}, {"lambda", {0.5}}}, 0.25, 0.75);
  expect({{"weight", {1, 3}}, {"normalize", {1}}}, 0.25, 0.75);
  expect({{"weight", {1, -1}}, {"normalize", {1}}}, 1, -1);  // a sum of 0 divides nothing
}

TEST(Slerp, GivesItsEndsAndKeepsTheNormBetweenEqualOnes) {
  const std::vector<float> a = RandomValues(kSize, 1);
  std::vector<float> b = RandomValues(kSize, 2);
  const double ratio = Norm(a) / Norm(b);
  for (float& x : b) x = static_cast<float>(double{x} * ratio);
  const Stored first(Shape{kSize}, a), second(Shape{kSize}, b);
  const TensorGroup group{.name = "w", .models = {first.view(), second.view()}};
  EXPECT_LT(LargestDistance(MergeOrDie("slerp", group, {{"t", {0}}}).values, a), 1e-6);
  EXPECT_LT(LargestDistance(MergeOrDie("slerp", group, {{"t", {1}}}).values, b), 1e-6);
  EXPECT_NEAR(Norm(MergeOrDie("slerp", group, {{"t", {0.4}}}).values), Norm(a), 1e-6 * Norm(a));
}

TEST(Slerp, IsLinearBetweenNearlyParallelOnesAndOfZeros) {
  const std::vector<float> a = RandomValues(100, 1);
  std::vector<float> b = a;
  for (float& x : b) x *= -2;
  const Stored first(Shape{100}, a), second(Shape{100}, b), zero(Shape{100}, std::vector<float>(100));
  const auto linear = [&](const Stored& from, const Stored& to) {
    return MergeOrDie("slerp", {.name = "w", .models = {from.view(), to.view()}}, {{"t", {0.25}}}).report.coefficients;
  };
  EXPECT_EQ(linear(first, second), (std::vector<double>{0.75, 0.25}));  // cos = -1
  EXPECT_EQ(linear(zero, zero)[0], std::sin(0.75 * std::acos(0.0)));    // norms count as 1: a right angle
}

// What a trim keeps, by sorting.
std::vector<float> KeepTop(const std::vector<float>& d, double density) {
  std::vector<size_t> order(d.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(),
            [&](size_t i, size_t j) { return std::pair(-std::fabs(d[i]), i) < std::pair(-std::fabs(d[j]), j); });
  std::vector<float> kept(d.size());
  const auto n = std::max<size_t>(1, static_cast<size_t>(density * static_cast<double>(d.size())));
  for (size_t i = 0; i < n; ++i) kept[order[i]] = d[order[i]];
  return kept;
}

std::vector<float> Differences(const Family& family, size_t model) {
  std::vector<float> d = family.models[model].values();
  const std::vector<float> base = family.base.values();
  for (size_t i = 0; i < d.size(); ++i) d[i] -= base[i];
  return d;
}

TEST(Ties, OfOneModelIsItsTrimmedDifference) {
  for (const DType dtype : {DType::kF32, DType::kBf16}) {  // BF16: many magnitudes are equal
    const Family family(dtype, 1);
    for (const double density : {1e-6, 0.2, 0.5, 0.999, 1.0}) {
      const Merged merged = MergeOrDie("ties", family.Group(), {{"density", {density}}});
      const std::vector<float> kept = KeepTop(Differences(family, 0), density);
      EXPECT_EQ(LargestDistance(merged.values, Sum(family.base.values(), kept)), 0) << density;
    }
  }
}

TEST(Ties, KeepsTheLowerIndexOfEqualMagnitudes) {
  std::vector<float> change(3 * kBlock, 0.25F);
  for (size_t i = 0; i < change.size(); i += 3) change[i] = -0.25F;
  change[5] = 1;
  const Stored base(Shape{change.size()}, std::vector<float>(change.size())), model(Shape{change.size()}, change);
  const TensorGroup group{.name = "w", .base = base.view(), .models = {model.view()}};
  for (const size_t n_kept : {size_t{1}, size_t{6}, kBlock, kBlock + 1, 2 * kBlock + 77, change.size() - 1}) {
    const double density = (static_cast<double>(n_kept) + 0.5) / static_cast<double>(change.size());
    const Merged merged = MergeOrDie("ties", group, {{"density", {density}}});
    EXPECT_EQ(LargestDistance(merged.values, KeepTop(change, density)), 0) << n_kept;
  }
}

TEST(Ties, AveragesWhatAgreesWithTheElectedSign) {
  // Columns: agreement, a majority of weight, a tie of signs (0 counts as +), one zero, all zeros.
  const Stored base(Shape{5}, {1, 1, 1, 1, 1});
  const Stored a(Shape{5}, {2, 4, 2, 1, 1}), b(Shape{5}, {3, 0, 0, 3, 1}), c(Shape{5}, {4, 0, 1, 0.5, 1});
  const TensorGroup group{.name = "w", .base = base.view(), .models = {a.view(), b.view(), c.view()}};
  EXPECT_EQ(MergeOrDie("ties", group).values, (std::vector<float>{3, 4, 2, 3, 1}));
  EXPECT_EQ(MergeOrDie("ties", group, {{"normalize", {0}}}).values, (std::vector<float>{7, 4, 2, 3, 1}));
  EXPECT_EQ(MergeOrDie("ties", group, {{"lambda", {0.5}}}).values, (std::vector<float>{2, 2.5, 1.5, 2, 1}));
  EXPECT_EQ(MergeOrDie("ties", group, {{"weight", {1, 5, 1}}}).values, (std::vector<float>{1 + 14.0F / 7, 0, 0, 3, 1}));
}

TEST(Dare, KeepsTheExpectationOfADifference) {
  const Family family(DType::kF32, 1);
  const std::vector<float> d = Differences(family, 0);
  const size_t n_draws = 400;
  for (const char* name : {"dare_linear", "dare_ties"}) {
    std::vector<double> sums(kSize);
    for (size_t seed = 0; seed < n_draws; ++seed) {
      const Merged merged =
          MergeOrDie(name, family.Group(), {{"density", {0.25}}, {"seed", {static_cast<double>(seed)}}});
      const std::vector<float> base = family.base.values();
      for (size_t i = 0; i < kSize; ++i) sums[i] += double{merged.values[i]} - double{base[i]};
    }
    // An entry's mean deviates by |d| ((1/p - 1) / draws)^(1/2); chi squared over all entries: 1 within 5 deviations.
    double chi = 0;
    for (size_t i = 0; i < kSize; ++i) {
      const double off = sums[i] / static_cast<double>(n_draws) - double{d[i]};
      chi += off * off / (double{d[i]} * double{d[i]} * 3 / static_cast<double>(n_draws) + 1e-14);
    }
    EXPECT_NEAR(chi / kSize, 1, 5 * std::sqrt(2.0 / kSize)) << name;
  }
}

TEST(Dare, DrawsByTensorModelAndSeed) {
  const Family family(DType::kF32, 1);
  TensorGroup group = family.Group();
  group.models.push_back(group.models[0]);
  const auto only = [&](size_t model, const Parameters& more) {
    Parameters parameters = {{"density", {0.5}},
                             {"weight", model == 0 ? std::vector<double>{1, 0} : std::vector<double>{0, 1}}};
    parameters.insert(parameters.end(), more.begin(), more.end());
    return MergeOrDie("dare_linear", group, parameters).values;
  };
  const std::vector<float> first = only(0, {});
  EXPECT_EQ(first, only(0, {{"seed", {0}}}));
  EXPECT_NE(first, only(1, {}));
  EXPECT_NE(first, only(0, {{"seed", {1}}}));
  group.name = "v";
  EXPECT_NE(first, only(0, {}));
  group.name = "w";
  const std::vector<float> halves = only(0, {{"rescale", {0}}}), d = Differences(family, 0),
                           base = family.base.values();
  for (size_t i = 0; i < kSize; ++i) {
    const bool is_kept = halves[i] != base[i];
    ASSERT_NEAR(first[i] - base[i], is_kept ? 2 * d[i] : 0, 1e-6);
  }
}

TEST(Elementwise, ThreadsDoNotChangeABit) {
  const Family family(DType::kBf16, 3);
  for (const char* name : {"linear", "task_arithmetic", "ties", "dare_linear", "dare_ties", "opcm", "monosoup"}) {
    const Parameters parameters = FindParameterOrNull(*FindMethodOrNull(name), "density") != nullptr
                                      ? Parameters{{"density", {0.3}}}
                                      : Parameters{};
    const Merged one = MergeOrDie(name, family.Group(), parameters, 1);
    for (const size_t n_threads : {2U, 3U, 7U}) {
      const Merged more = MergeOrDie(name, family.Group(), parameters, n_threads);
      EXPECT_EQ(one.values, more.values) << name;
      EXPECT_EQ(one.report.result_squares, more.report.result_squares) << name;
      EXPECT_EQ(one.report.task_squares, more.report.task_squares) << name;
    }
  }
}

TEST(Elementwise, MergesTensorsOfOneElementAndOfNone) {
  const Stored base(Shape{1, 1}, {1}), model(Shape{1, 1}, {3}), nothing(Shape{0, 4}, {});
  for (const Method& method : Methods()) {
    SCOPED_TRACE(method.name);
    const Parameters parameters = method.name == "svd_average" ? Parameters{{"rank", {1}}} : Parameters{};
    TensorGroup group{.name = "w", .base = base.view(), .models = {model.view()}, .is_linear = true};
    TensorGroup empty{.name = "w", .base = nothing.view(), .models = {nothing.view()}, .is_linear = true};
    if (method.min_models == 2) group.models.push_back(model.view());
    if (method.min_models == 2) empty.models.push_back(nothing.view());
    const float expected = method.has_second_pass ? 2 : 3;  // opcm's first pass: the difference
    EXPECT_EQ(MergeOrDie(method.name, group, parameters).values, std::vector<float>{expected});
    EXPECT_TRUE(MergeOrDie(method.name, empty, parameters).values.empty());
  }
}

TEST(Elementwise, RefusesWhatIsNotFiniteByName) {
  for (const Method& method : Methods()) {
    SCOPED_TRACE(method.name);
    const Parameters parameters = method.name == "svd_average" ? Parameters{{"rank", {1}}} : Parameters{};
    for (const Shape& shape : {Shape{40}, Shape{5, 8}}) {
      for (const size_t bad : {0U, 1U, 2U}) {
        if (bad == 0 && !method.needs_base) continue;
        std::vector<Stored> tensors;
        for (size_t i = 0; i < 3; ++i) {
          std::vector<float> values = RandomValues(40, i);
          if (i == bad) values[23] = i == 1 ? INFINITY : NAN;
          tensors.emplace_back(shape, values, DType::kBf16);
        }
        const TensorGroup group{.name = "w",
                                .base = tensors[0].view(),
                                .models = {tensors[1].view(), tensors[2].view()},
                                .is_linear = true};
        testing::ExpectRefusal(TryMerge(method.name, group, parameters), StatusCode::kCorrupt,
                               {"tensor w",
                                bad == 0   ? "the base"
                                : bad == 1 ? "model 1"
                                           : "model 2",
                                bad == 1 ? "an infinity" : "NaN", "element 23"});
      }
    }
  }
}

TEST(Elementwise, RefusesAMergeThatOverflows) {
  const Stored base(Shape{2}, {0, 0}), model(Shape{2}, {1, 3e38F});
  const TensorGroup group{.name = "w", .base = base.view(), .models = {model.view()}};
  testing::ExpectRefusal(TryMerge("task_arithmetic", group, {{"weight", {2}}}), StatusCode::kCorrupt,
                         {"tensor w", "overflows f32"});
}

}  // namespace
}  // namespace df::merge
