#include "merge/truncation.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "linalg/factor.h"
#include "linalg/linalg_fixture.h"
#include "linalg/products.h"
#include "merge/merge_fixture.h"
#include "testing/refusal.h"

namespace df::merge {
namespace {

using linalg::Geometric;
using linalg::WithSpectrum;

// D_k of a truncation as a whole matrix.
Mat<float> Kept(MatView<const float> d, const Truncation& cut) {
  Mat<float> kept(d.rows, d.cols);
  if (cut.is_rest) {
    for (size_t row = 0; row < d.rows; ++row) std::copy_n(d.Row(row), d.cols, kept.Row(row));
    if (cut.left.cols() > 0) linalg::SubtractProduct(cut.left.view(), cut.right.view(), kept.view());
  } else {
    linalg::AddProduct(cut.left.view(), cut.right.view(), kept.view());
  }
  return kept;
}

// By LAPACK: the k leading terms.
Mat<float> ExactKept(const linalg::Svd& svd, size_t k) {
  Mat<float> left(svd.u.rows(), k), kept(svd.u.rows(), svd.vt.cols());
  for (size_t row = 0; row < left.rows(); ++row) {
    for (size_t i = 0; i < k; ++i) left.Row(row)[i] = svd.u.Row(row)[i] * svd.s[i];
  }
  linalg::Multiply(left.view(), svd.vt.view().Rows(0, k), kept.view());
  return kept;
}

double DistanceOf(const Mat<float>& a, const Mat<float>& b) {
  const size_t n = a.rows() * a.cols();
  return Distance({a.Row(0), a.Row(0) + n}, {b.Row(0), b.Row(0) + n});
}

Truncation CutOf(MatView<const float> d, const CutRule& rule, size_t n_threads = 2) {
  ThreadPool pool(n_threads);
  return testing::ValueOrDie(Truncate(pool, d, linalg::SumOfSquares(d), rule));
}

TEST(Truncation, ByGramIsLapacksWhateverTheShapeAndRank) {
  for (const auto& [rows, cols] :
       {std::pair(40U, 70U), std::pair(70U, 40U), std::pair(50U, 50U), std::pair(1U, 9U), std::pair(9U, 1U)}) {
    const size_t size = std::min(rows, cols);
    const Mat<float> d = WithSpectrum(rows, cols, Geometric(size, 0.9), 1);
    const linalg::Svd svd = testing::ValueOrDie(linalg::ExactSvd(d.view()));
    for (const size_t k : {size_t{1}, size_t{7}, size / 2 + 2, size - 1, size, size + 5}) {
      const Truncation cut = CutOf(d.view(), {.rank = std::max<size_t>(k, 1)});
      const size_t kept = std::clamp<size_t>(k, 1, size);
      EXPECT_EQ(cut.spectrum.rank, kept);
      EXPECT_EQ(cut.spectrum.size, size);
      EXPECT_EQ(cut.spectrum.way, Way::kGram);
      EXPECT_LE(cut.left.cols(), size / 2 + 1);  // the smaller part is held
      // Vectors of values s and s' mix by rounding / (s - s'): neighbours here are a tenth apart.
      EXPECT_LT(DistanceOf(Kept(d.view(), cut), ExactKept(svd, kept)), 2e-5) << rows << "x" << cols << " " << k;
    }
  }
}

TEST(Truncation, CountsEnergyAndEffectiveRankAsDefined) {
  const std::vector<double> spectrum = {4, 3, 2, 1, 0.5};
  const Mat<float> d = WithSpectrum(30, 20, spectrum, 2);
  double total = 0, sum = 0, entropy = 0;
  for (const double s : spectrum) {
    total += s * s;
    sum += s;
  }
  for (const double s : spectrum) entropy -= s / sum * std::log(s / sum);
  for (size_t k = 1; k <= 5; ++k) {
    double energy = 0;
    for (size_t i = 0; i < k; ++i) energy += spectrum[i] * spectrum[i] / total;
    const Truncation cut = CutOf(d.view(), {.energy = energy - 1e-3});
    EXPECT_EQ(cut.spectrum.rank, k);
    EXPECT_NEAR(cut.spectrum.energy, energy, 1e-6);
    EXPECT_NEAR(cut.spectrum.largest, 4, 1e-5);
    EXPECT_NEAR(cut.spectrum.first_cut, k < 5 ? spectrum[k] : 0, 1e-5);
  }
  EXPECT_EQ(CutOf(d.view(), {.effective_rank = true}).spectrum.rank, static_cast<size_t>(std::ceil(std::exp(entropy))));
  EXPECT_EQ(CutOf(WithSpectrum(30, 20, {1, 1, 1, 1, 1, 1}, 3).view(), {.effective_rank = true}).spectrum.rank, 6U);
}

TEST(Truncation, OfZeroKeepsAllOfNothing) {
  const Mat<float> zero(4, 6);
  const Truncation cut = CutOf(zero.view(), {.energy = 0.8});
  EXPECT_EQ(cut.left.cols(), 0U);
  EXPECT_TRUE(cut.is_rest);
  EXPECT_EQ(cut.spectrum.energy, 1);
}

TEST(Truncation, RefusesWhatLapackCannotHoldBeforeMakingIt) {
  DF_EXPECT_OK(CheckGramSize(30000, 1000000));
  testing::ExpectRefusal(CheckGramSize(40000, 30001), StatusCode::kUnsupported, {"40000 x 30001", "30000"});
  testing::ExpectRefusal(CheckGramSize(2, size_t{1} << 31), StatusCode::kUnsupported, {"2147483648"});
}

// Beyond kGramAlways: a spectrum that falls to the floor of noise which rounding to BF16 leaves.
Mat<float> TallWithNoise(size_t rank, double ratio, double noise) {
  Mat<float> d = WithSpectrum(700, 600, Geometric(rank, ratio), 4);
  const std::vector<float> more = RandomValues(d.rows() * d.cols(), 5, noise);
  for (size_t i = 0; i < more.size(); ++i) d.Row(0)[i] += more[i];
  return d;
}

TEST(TruncationSlow, ByProjectionIsLapacksNearly) {
  for (const auto& [ratio, noise] : {std::pair(0.5, 1e-4), std::pair(0.9, 1e-4), std::pair(0.9, 1e-3)}) {
    const Mat<float> d = TallWithNoise(60, ratio, noise);
    const linalg::Svd svd = testing::ValueOrDie(linalg::ExactSvd(d.view()));
    const double norm = std::sqrt(linalg::SumOfSquares(d.view()));
    for (const CutRule& rule :
         {CutRule{.rank = 4}, CutRule{.rank = 16}, CutRule{.energy = 0.8}, CutRule{.energy = 0.9}}) {
      const Truncation cut = CutOf(d.view(), rule);
      ASSERT_EQ(cut.spectrum.way, Way::kRandomised);
      const size_t k = cut.spectrum.rank;
      double kept = 0;
      for (size_t i = 0; i < k; ++i) kept += double{svd.s[i]} * double{svd.s[i]} / (norm * norm);
      EXPECT_LE(cut.spectrum.energy, kept + 1e-5);
      EXPECT_GE(cut.spectrum.energy, kept - 1e-4);
      EXPECT_NEAR(cut.spectrum.first_cut, svd.s[k], 0.1 * svd.s[k]);  // within the noise, values are alike
      // What it leaves is what the best leaves, to 0.5 %.
      const double best = DistanceOf(ExactKept(svd, k), d), got = DistanceOf(Kept(d.view(), cut), d);
      EXPECT_LT(got, best * (1 + 5e-3)) << ratio << " " << noise << " " << k;
      if (rule.energy == 0) continue;
      double sum = 0;
      size_t fewest = 0;
      while (sum < rule.energy * norm * norm) sum += double{svd.s[fewest]} * double{svd.s[fewest]}, ++fewest;
      EXPECT_LE(k, fewest + 1);
      EXPECT_GE(k, fewest);
    }
  }
}

TEST(TruncationSlow, TurnsToTheGramMatrixWhereManyValuesAreNeeded) {
  Mat<float> flat(600, 800);
  const std::vector<float> values = RandomValues(600 * 800, 6);
  std::ranges::copy(values, flat.Row(0));
  const Truncation by_energy = CutOf(flat.view(), {.energy = 0.8}),
                   whole = CutOf(flat.view(), {.effective_rank = true}), by_rank = CutOf(flat.view(), {.rank = 300});
  for (const Truncation* cut : {&by_energy, &whole, &by_rank}) EXPECT_EQ(cut->spectrum.way, Way::kGram);
  const linalg::Svd svd = testing::ValueOrDie(linalg::ExactSvd(flat.view()));
  EXPECT_LT(DistanceOf(Kept(flat.view(), by_rank), ExactKept(svd, 300)),
            1e-3 * std::sqrt(linalg::SumOfSquares(flat.view())));
  EXPECT_GE(by_energy.spectrum.energy, 0.8);
  // A first part that 256 values hold, then a long tail: the projection is tried and given up.
  std::vector<double> spectrum(500, 0.3);
  std::fill_n(spectrum.begin(), 8, 4.0);
  const Mat<float> mixed = WithSpectrum(600, 520, spectrum, 7);
  EXPECT_EQ(CutOf(mixed.view(), {.energy = 0.95}).spectrum.way, Way::kGram);
  EXPECT_EQ(CutOf(mixed.view(), {.energy = 0.7}).spectrum.way, Way::kRandomised);
}

TEST(TruncationSlow, ThreadsDoNotChangeABit) {
  const Mat<float> d = TallWithNoise(60, 0.9, 1e-3);
  for (const CutRule& rule : {CutRule{.rank = 16}, CutRule{.energy = 0.8}, CutRule{.effective_rank = true}}) {
    const Truncation one = CutOf(d.view(), rule, 1), more = CutOf(d.view(), rule, 3);
    EXPECT_EQ(one.spectrum.rank, more.spectrum.rank);
    EXPECT_EQ(DistanceOf(one.left, more.left), 0);
    EXPECT_EQ(DistanceOf(one.right, more.right), 0);
  }
}

}  // namespace
}  // namespace df::merge
