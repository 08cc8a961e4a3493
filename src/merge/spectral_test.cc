// Properties of the methods that look at singular values: svd_average, monosoup, opcm.
#include <gtest/gtest.h>

#include <algorithm>

#include "linalg/linalg_fixture.h"
#include "merge/merge_fixture.h"
#include "merge/opcm.h"
#include "testing/refusal.h"

namespace df::merge {
namespace {

std::vector<float> Values(const Mat<float>& a) { return {a.Row(0), a.Row(0) + a.rows() * a.cols()}; }

std::vector<float> Minus(std::vector<float> a, const std::vector<float>& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] -= b[i];
  return a;
}

// A base [rows, cols] and models that differ from it by the given matrices.
struct Family {
  Family(Shape matrix, const std::vector<std::vector<float>>& changes)
      : shape(matrix), base(matrix, RandomValues(matrix[0] * matrix[1], 1)) {
    for (const auto& change : changes) models.emplace_back(shape, Sum(base.values(), change));
  }
  TensorGroup Group() const {
    TensorGroup group{.name = "w", .base = base.view(), .is_linear = true};
    for (const Stored& model : models) group.models.push_back(model.view());
    return group;
  }
  std::vector<float> Change(size_t model) const { return Minus(models[model].values(), base.values()); }
  Shape shape;
  Stored base;
  std::vector<Stored> models;
};

TEST(Monosoup, LeavesAFlatDifferenceOfLowRankAsItIs) {
  const Family family(Shape{40, 60}, {Values(linalg::WithSpectrum(40, 60, {1, 1, 1, 1, 1, 1, 1, 1}, 2))});
  // The differences are rounded to the f32 of W, which makes a tail of 1e-7; P may be short of 1 by its square only.
  const Merged by_rank = MergeOrDie("monosoup", family.Group(), {{"effective_rank", {1}}});
  EXPECT_LT(LargestDistance(by_rank.values, family.models[0].values()), 1e-5);
  const Family few(Shape{40, 60}, {Values(linalg::WithSpectrum(40, 60, {1, 1, 1, 1}, 3))});
  const Merged by_energy = MergeOrDie("monosoup", few.Group());  // 3 of 4 equal values do not reach 0.8
  EXPECT_EQ(by_energy.report.spectra[0].rank, 4U);
  EXPECT_LT(LargestDistance(by_energy.values, few.models[0].values()), 1e-5);
}

TEST(Monosoup, DampsTheTailByItsFormula) {
  const std::vector<double> spectrum = {4, 2, 1, 0.5};
  const Family family(Shape{30, 20}, {Values(linalg::WithSpectrum(30, 20, spectrum, 4))});
  const Merged merged = MergeOrDie("monosoup", family.Group(), {{"energy", {0.9}}});
  ASSERT_EQ(merged.report.spectra[0].rank, 2U);
  const double energy = 20 / 21.25, rho = 1.0 / 16, low = rho + (1 - rho) * std::sqrt(1 - energy);
  EXPECT_NEAR(merged.report.edit->low, low, 1e-5);
  const std::vector<float> leading = Values(linalg::WithSpectrum(30, 20, {4, 2}, 4));
  const std::vector<float> change = family.Change(0);
  std::vector<float> expected = family.base.values();
  for (size_t i = 0; i < expected.size(); ++i) {
    const double tail = double{change[i]} - double{leading[i]};
    expected[i] = static_cast<float>(double{expected[i]} + (1 - low) * double{leading[i]} + low * tail);
  }
  // The fixture's vectors do not depend on how many values there are.
  EXPECT_LT(LargestDistance(merged.values, expected), 1e-5);
}

TEST(Monosoup, CopiesVectorsAndWhatIsUnchanged) {
  const Stored base(Shape{64}, RandomValues(64, 1)), model(Shape{64}, RandomValues(64, 2));
  const Merged vector = MergeOrDie("monosoup", {.name = "w", .base = base.view(), .models = {model.view()}});
  EXPECT_EQ(vector.values, model.values());
  EXPECT_EQ(vector.report.way, Way::kCopied);
  for (const float change : {0.0F, 1e-8F}) {
    const Family family(Shape{8, 8}, {std::vector<float>(64, change)});
    const Merged same = MergeOrDie("monosoup", family.Group());
    EXPECT_EQ(same.values, family.models[0].values());
    EXPECT_EQ(same.report.way, Way::kCopied);
  }
}

TEST(Monosoup, OfSeveralEditsTheMeanOfTheirDifferencesOnce) {
  const Family family(Shape{20, 30}, {RandomValues(600, 2), RandomValues(600, 3), RandomValues(600, 4)});
  std::vector<float> mean(600);
  for (size_t i = 0; i < 600; ++i) {
    for (size_t m = 0; m < 3; ++m) mean[i] += family.Change(m)[i] / 3;
  }
  const Family one(Shape{20, 30}, {mean});
  EXPECT_LT(LargestDistance(MergeOrDie("monosoup", family.Group()).values, MergeOrDie("monosoup", one.Group()).values),
            1e-5);
}

TEST(SvdAverage, OfFullRankIsThePlainMean) {
  const Family family(Shape{12, 18}, {RandomValues(216, 2), RandomValues(216, 3)});
  const Merged all = MergeOrDie("svd_average", family.Group(), {{"rank", {12}}});
  const Merged by_energy = MergeOrDie("svd_average", family.Group(), {{"energy", {1}}});
  const Merged mean = MergeOrDie("linear", family.Group());
  EXPECT_LT(LargestDistance(all.values, mean.values), 1e-6);
  EXPECT_LT(LargestDistance(by_energy.values, mean.values), 1e-5);
  ASSERT_EQ(all.report.spectra.size(), 2U);
  EXPECT_NEAR(all.report.spectra[1].energy, 1, 1e-9);
}

TEST(SvdAverage, KeepsWhatHasTheRankAndDropsTheNoise) {
  const std::vector<float> signal = Values(linalg::WithSpectrum(60, 50, {8, 6}, 2));
  std::vector<std::vector<float>> changes;
  for (size_t i = 0; i < 3; ++i) changes.push_back(Sum(signal, RandomValues(3000, 5 + i, 0.1)));
  const Family family(Shape{60, 50}, changes);
  const std::vector<float> truth = Sum(family.base.values(), signal);
  const double cut = Distance(MergeOrDie("svd_average", family.Group(), {{"rank", {2}}}).values, truth);
  const double plain = Distance(MergeOrDie("linear", family.Group()).values, truth);
  EXPECT_LT(cut, plain / 2);
}

// T after the first k models, by the first pass.
std::vector<float> OpcmSum(const Family& family, size_t k, const Parameters& parameters = {}) {
  TensorGroup group = family.Group();
  group.models.resize(k);
  return MergeOrDie("opcm", group, parameters).values;
}

double Inner(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += double{a[i]} * double{b[i]};
  return sum;
}

TEST(Opcm, AddsOnlyWhatIsOrthogonalToTheSum) {
  for (const Shape& shape : {Shape{20, 33}, Shape{33, 20}, Shape{24, 24}}) {
    const size_t n = shape[0] * shape[1];
    const Family family(shape, {RandomValues(n, 2), RandomValues(n, 3), RandomValues(n, 4)});
    for (const double alpha : {0.0, 0.3, 0.5, 1.0}) {
      for (size_t k = 2; k <= 3; ++k) {
        const std::vector<float> before = OpcmSum(family, k - 1, {{"alpha", {alpha}}});
        const std::vector<float> added = Minus(OpcmSum(family, k, {{"alpha", {alpha}}}), before);
        // A square matrix with alpha 1 has nothing to add but rounding.
        EXPECT_LT(std::fabs(Inner(before, added)), 1e-6 * Norm(before) * Norm(family.Change(k - 1))) << alpha;
        const bool is_whole = alpha == 1 && shape[0] == shape[1];
        EXPECT_GE(Norm(added), (is_whole ? 0 : 0.1) * Norm(family.Change(k - 1))) << alpha;
      }
    }
  }
}

TEST(Opcm, KeepsTheMeanNormOfItsTaskVectors) {
  const Family family(Shape{20, 33}, {RandomValues(660, 2), RandomValues(660, 3, 0.5), RandomValues(660, 4, 2)});
  const Merged sum = MergeOrDie("opcm", family.Group());
  OpcmSums sums;
  sums.Add(sum.report);
  const Stored unscaled(family.shape, sum.values);
  ThreadPool pool(2);
  const Report report = testing::ValueOrDie(
      FinishOpcm(pool, "w", family.base.view(), unscaled.view(), sums.Scale(), [](size_t, std::span<const float>) {}));
  const double mean = (Norm(family.Change(0)) + Norm(family.Change(1)) + Norm(family.Change(2))) / 3;
  EXPECT_NEAR(std::sqrt(report.result_squares), mean, 1e-6 * mean);
}

TEST(Opcm, OfTheSameModelTwiceAddsNothing) {
  const std::vector<float> change = RandomValues(600, 2);
  const Family family(Shape{20, 30}, {change, change});
  EXPECT_LT(Distance(OpcmSum(family, 2), OpcmSum(family, 1)), 1e-5 * Norm(change));
}

TEST(Opcm, OfOneModelIsItAndOfNoChangeIsTheBase) {
  const Family family(Shape{8, 9}, {RandomValues(72, 2)});
  EXPECT_EQ(OpcmSum(family, 1), family.Change(0));
  const Family none(Shape{8, 9}, {std::vector<float>(72), std::vector<float>(72)});
  const Merged sum = MergeOrDie("opcm", none.Group());
  EXPECT_EQ(sum.values, std::vector<float>(72));
  OpcmSums sums;
  sums.Add(sum.report);
  EXPECT_EQ(sums.Lambdas(), (std::vector<double>{1, 1}));
  // Opposite changes of a vector cancel: what is left is the base, not a division by 0.
  const Stored base(Shape{2}, {1, 1}), up(Shape{2}, {2, 1}), down(Shape{2}, {0, 1});
  const Merged cancelled = MergeOrDie("opcm", {.name = "w", .base = base.view(), .models = {up.view(), down.view()}});
  OpcmSums of_vector;
  of_vector.Add(cancelled.report);
  EXPECT_EQ(of_vector.Scale(), 0);
}

// Singular vectors by rotations of pairs of rows (one-sided Jacobi, Hestenes 1958), which finds small values as exactly
// as large ones: a [m, n], m <= n, becomes diag(s) V^T and u [m, m] is U^T, in no order.
void RotateToOrthogonalRows(Mat<double>& a, Mat<double>& u) {
  const auto rotate = [](std::span<double> x, std::span<double> y, double c, double s) {
    for (size_t k = 0; k < x.size(); ++k) {
      const double to_x = c * x[k] - s * y[k];
      y[k] = s * x[k] + c * y[k];
      x[k] = to_x;
    }
  };
  for (size_t sweep = 0; sweep < 30; ++sweep) {
    for (size_t i = 0; i < a.rows(); ++i) {
      for (size_t j = i + 1; j < a.rows(); ++j) {
        double xx = 0, yy = 0, xy = 0;
        for (size_t k = 0; k < a.cols(); ++k) {
          xx += a.Row(i)[k] * a.Row(i)[k];
          yy += a.Row(j)[k] * a.Row(j)[k];
          xy += a.Row(i)[k] * a.Row(j)[k];
        }
        if (xy == 0) continue;
        const double z = (yy - xx) / (2 * xy), t = (z < 0 ? -1 : 1) / (std::fabs(z) + std::hypot(1, z));
        const double c = 1 / std::hypot(1, t);
        rotate(a.view().RowSpan(i), a.view().RowSpan(j), c, c * t);
        rotate(u.view().RowSpan(i), u.view().RowSpan(j), c, c * t);
      }
    }
  }
}

// T + tau~ in f64; changes [m, n], m <= n, T of full rank with values below 1e-5 of the largest.
std::vector<double> ProjectedSum(const std::vector<float>& before, const std::vector<float>& change, size_t m, size_t n,
                                 double alpha) {
  Mat<double> a(m, n), u(m, m);
  std::copy(before.begin(), before.end(), a.Row(0));
  for (size_t i = 0; i < m; ++i) u.Row(i)[i] = 1;
  RotateToOrthogonalRows(a, u);
  std::vector<std::pair<double, size_t>> order;
  double total = 0, sum = 0;
  for (size_t i = 0; i < m; ++i) {
    double squares = 0;
    for (size_t k = 0; k < n; ++k) squares += a.Row(i)[k] * a.Row(i)[k];
    order.emplace_back(std::sqrt(squares), i);
    total += order.back().first;
  }
  std::sort(order.rbegin(), order.rend());
  EXPECT_LT(order.back().first, 1e-5 * order.front().first);
  size_t r = 0;
  while (r < m && (sum += order[r].first) <= alpha * total) ++r;
  std::vector<double> result(before.begin(), before.end());
  for (size_t j = 0; j < m * n; ++j) result[j] += double{change[j]};
  for (size_t p = 0; p < m; ++p) {
    for (size_t q = 0; q < m; ++q) {
      if (p != q && (p >= r || q >= r)) continue;
      const double* const x = u.Row(order[p].second);
      const double* const y = a.Row(order[q].second);
      double share = 0;  // u_p^T tau (s_q v_q)
      for (size_t j = 0; j < m * n; ++j) share += x[j / n] * double{change[j]} * y[j % n];
      share /= order[q].first * order[q].first;
      for (size_t j = 0; j < m * n; ++j) result[j] -= share * x[j / n] * y[j % n];
    }
  }
  return result;
}

// What is left are roundings to f32, 2^-24 each, of the vectors, the products (length m <= 24) and the sum, and what
// the Gram matrix in f64 does not resolve of the smallest value, 2^-53 (s_1 / s_m)^2 = 1e-6 of some 1 / m of the
// change. v_m by u_m in f32 would be 2^-24 s_1 / s_m = 6e-3 away.
TEST(Opcm, SeesDirectionsWhoseValuesAreSmall) {
  for (const auto& [m, n] : {std::pair<size_t, size_t>{16, 30}, {30, 16}, {24, 24}}) {
    const size_t shorter = std::min(m, n);
    const double ratio = std::pow(1e-5, 1.05 / static_cast<double>(shorter - 1));
    const std::vector<float> small = Values(linalg::WithSpectrum(m, n, linalg::Geometric(shorter, ratio), 5));
    const Stored base(Shape{m, n}, std::vector<float>(m * n)), first(Shape{m, n}, small),
        second(Shape{m, n}, RandomValues(m * n, 7, 0.1));
    const TensorGroup group{
        .name = "w", .base = base.view(), .models = {first.view(), second.view()}, .is_linear = true};
    const auto wide = [&](const std::vector<float>& values) {
      if (m <= n) return values;
      std::vector<float> turned(values.size());
      for (size_t i = 0; i < m * n; ++i) turned[i % n * m + i / n] = values[i];
      return turned;
    };
    const std::vector<float> got = wide(MergeOrDie("opcm", group).values);
    const std::vector<double> want = ProjectedSum(wide(small), wide(second.values()), shorter, std::max(m, n), 0.5);
    double squares = 0, distance = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      squares += want[i] * want[i];
      distance += (double{got[i]} - want[i]) * (double{got[i]} - want[i]);
    }
    EXPECT_LT(std::sqrt(distance), 5e-7 * std::sqrt(squares)) << m << " x " << n;
  }
}

TEST(Opcm, SumsWhatIsNoLinearWeight) {
  const Family family(Shape{8, 9}, {RandomValues(72, 2), RandomValues(72, 3)});
  TensorGroup group = family.Group();
  group.is_linear = false;
  EXPECT_LT(LargestDistance(MergeOrDie("opcm", group).values, Sum(family.Change(0), family.Change(1))), 1e-6);
}

TEST(Opcm, RefusesASecondPassOverSomethingElse) {
  const Stored base(Shape{2, 3}, RandomValues(6, 1)), other(Shape{3, 2}, RandomValues(6, 1)),
      narrow(Shape{2, 3}, RandomValues(6, 1), DType::kBf16);
  ThreadPool pool(1);
  const auto nowhere = [](size_t, std::span<const float>) {};
  testing::ExpectRefusal(FinishOpcm(pool, "w", base.view(), other.view(), 1, nowhere), StatusCode::kInvalidArgument,
                         {"tensor w", "[3, 2]", "[2, 3]"});
  testing::ExpectRefusal(FinishOpcm(pool, "w", base.view(), narrow.view(), 1, nowhere), StatusCode::kInvalidArgument,
                         {"BF16"});
}

}  // namespace
}  // namespace df::merge
