#include "codec/row_ops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/float16.h"
#include "base/rng.h"
#include "codec/ref/row_ops.h"
#include "kernels/target.h"

namespace df {
namespace {

// Calls body() with every vector target of this machine in force.
template <typename Body>
void OnEveryTarget(const Body& body) {
  for (const std::string& target : kernels::AvailableTargets()) {
    SCOPED_TRACE(target);
    ASSERT_TRUE(kernels::SetTarget(target).ok());
    body();
  }
  ASSERT_TRUE(kernels::SetTarget("auto").ok());
}

bool HaveSameBits(const std::vector<float>& a, const std::vector<float>& b) {
  const auto same = [](float x, float y) { return std::bit_cast<uint32_t>(x) == std::bit_cast<uint32_t>(y); };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), same);
}

// Every remainder of 8, 16 and 32, and lengths of real rows.
std::vector<size_t> Lengths() {
  std::vector<size_t> lengths = {513, 4104, 14336};
  for (size_t n = 0; n <= 66; ++n) lengths.push_back(n);
  return lengths;
}

// Of many magnitudes, all below 2^14, zeros among them; never -0.
std::vector<float> Values(size_t n, uint64_t seed) {
  std::vector<float> values(n);
  for (size_t j = 0; j < n; ++j) {
    const double unit = RandomUnit(seed, 2 * j) - 0.5;
    const double power = std::exp2(std::floor(36 * RandomUnit(seed, 2 * j + 1)) - 22);
    values[j] = j % 7 == 3 ? 0.0F : static_cast<float>(unit * power);
  }
  return values;
}

std::vector<double> Doubles(size_t n, uint64_t seed) {
  std::vector<double> values(n);
  for (size_t j = 0; j < n; ++j) values[j] = RandomUnit(seed, j) / 64;
  return values;
}

template <typename T>
bool HasSameBits(const T& a, const T& b) {
  return std::memcmp(&a, &b, sizeof(T)) == 0;
}

bool AreTheSame(const row_ops::Magnitudes& a, const row_ops::Magnitudes& b) {
  return a.n == b.n && HasSameBits(a.pivot, b.pivot) && HasSameBits(a.above, b.above) &&
         HasSameBits(a.above_squares, b.above_squares) && HasSameBits(a.smallest, b.smallest) &&
         HasSameBits(a.largest, b.largest);
}

// A row of elements stored as `dtype` at an odd address, as a file may have them.
struct StoredRow {
  StoredRow(DType dtype, size_t n, uint64_t seed) : bytes(1 + n * DTypeBytes(dtype)) {
    EXPECT_TRUE(row_ops::ref::Narrow(Values(n, seed), dtype, bytes.data() + 1));
    view = {dtype, Shape{1, n}, {bytes.data() + 1, bytes.size() - 1}};
  }
  std::vector<uint8_t> bytes;
  TensorView view;
};

TEST(RowOps, EveryTargetHasTheReferencesDifferences) {
  OnEveryTarget([] {
    for (const DType fine_tune : {DType::kF32, DType::kBf16, DType::kF16}) {
      for (const DType base : {DType::kF32, DType::kBf16, DType::kF16}) {
        for (const size_t n : Lengths()) {
          const StoredRow a(fine_tune, n, 1), b(base, n, 2);
          std::vector<float> expected(n), got(n);
          row_ops::ref::Difference({"w", b.view, a.view}, 0, expected);
          row_ops::Difference({"w", b.view, a.view}, 0, got);
          ASSERT_TRUE(HaveSameBits(got, expected)) << n;
        }
      }
    }
  });
}

TEST(RowOps, OneLookGivesTheBitsOfThree) {
  OnEveryTarget([] {
    for (const DType fine_tune : {DType::kF32, DType::kBf16, DType::kF16}) {
      for (const DType base : {DType::kF32, DType::kBf16, DType::kF16}) {
        for (const size_t n : Lengths()) {
          const StoredRow a(fine_tune, n, 1), b(base, n, n % 5 == 4 ? 1 : 2);
          const WeightPair pair{"w", b.view, a.view};
          std::vector<uint8_t> expected((n + 7) / 8 + 1, 0xAA), got(expected);
          const row_ops::Magnitudes want = row_ops::ref::SignsOfDifference(pair, 0, n, expected.data());
          const row_ops::Magnitudes is = row_ops::SignsOfDifference(pair, 0, n, got.data());
          ASSERT_EQ(got, expected) << n;  // what lies behind stays
          EXPECT_TRUE(AreTheSame(is, want)) << n;
          EXPECT_EQ(row_ops::LargestDifference(pair, 0, n), want.largest) << n;
        }
      }
    }
  });
}

TEST(RowOps, EveryTargetHasTheReferencesSums) {
  OnEveryTarget([] {
    for (const size_t n : Lengths()) {
      const std::vector<float> r = Values(n, 3), d = Values(n, 4);
      const std::vector<double> v = Doubles(n, 5);
      EXPECT_TRUE(HasSameBits(row_ops::AbsSum(r), row_ops::ref::AbsSum(r))) << n;
      EXPECT_TRUE(AreTheSame(row_ops::MagnitudesOf(r), row_ops::ref::MagnitudesOf(r))) << n;
      EXPECT_TRUE(HasSameBits(row_ops::AbsDot(r, v), row_ops::ref::AbsDot(r, v))) << n;
      EXPECT_TRUE(HasSameBits(row_ops::SumOfSquares(v), row_ops::ref::SumOfSquares(v))) << n;
      EXPECT_TRUE(HasSameBits(row_ops::SumErrors(d, r), row_ops::ref::SumErrors(d, r))) << n;
      std::vector<double> got = v, expected = v;
      row_ops::AbsAxpy(0.7, r, got);
      row_ops::ref::AbsAxpy(0.7, r, expected);
      EXPECT_EQ(got, expected) << n;
    }
  });
}

TEST(RowOps, EveryTargetHasTheReferencesSigns) {
  OnEveryTarget([] {
    for (const size_t n : Lengths()) {
      const std::vector<float> r = Values(n, 6), col_scale = Values(n, 7);
      std::vector<uint8_t> expected((n + 7) / 8 + 1, 0xAA), got(expected);
      row_ops::ref::PackSigns(r, expected.data());
      row_ops::PackSigns(r, got.data());
      ASSERT_EQ(got, expected) << n;  // what lies behind stays
      std::vector<float> left = r, expected_left = r;
      row_ops::SubtractSigns(got.data(), 0.3F, left);
      row_ops::SubtractSigns(got.data(), -0.2F, col_scale, left);
      row_ops::ref::SubtractSigns(got.data(), 0.3F, expected_left);
      row_ops::ref::SubtractSigns(got.data(), -0.2F, col_scale, expected_left);
      ASSERT_TRUE(HaveSameBits(left, expected_left)) << n;
    }
  });
}

// The order of sums is the format's promise of equal bytes on every machine: it is held against a second writing down.
TEST(RowOps, SumsRunInLanesFoldedByHalves) {
  const std::vector<float> r = Values(1001, 8);
  std::vector<double> lanes(row_ops::kSumLanes);
  for (size_t j = 0; j < r.size(); ++j) lanes[j % lanes.size()] += std::fabs(double{r[j]});
  while (lanes.size() > 1) {
    std::vector<double> folded(lanes.size() / 2);
    for (size_t k = 0; k < folded.size(); ++k) folded[k] = lanes[k] + lanes[k + folded.size()];
    lanes = folded;
  }
  EXPECT_TRUE(HasSameBits(row_ops::AbsSum(r), lanes[0]));
}

// Differences of 4 rows by which f32 would be wrong: too large, too small, not finite, and the first much larger than
// the rest; and of some by which it is right.
std::vector<std::vector<float>> DifficultRows() {
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<std::vector<float>> rows;
  for (const size_t n : {5UL, 64UL, 1037UL}) {
    const std::vector<float> usual = Values(n, 11);
    for (const float factor : {0x1p80F, 0x1p-80F, 1.0F, 0.0F}) {
      rows.push_back(usual);
      for (float& value : rows.back()) value = factor * value + 0.0F;
    }
    for (const size_t at : {0UL, 4UL, n - 1}) {
      for (const float bad : {infinity, -infinity, nan}) {
        rows.push_back(usual);
        rows.back()[at] = bad;
      }
    }
    rows.emplace_back(n, -0.1F);
    rows.push_back(rows.back());
    std::fill(rows.back().begin() + static_cast<ptrdiff_t>(std::min<size_t>(n, 32)), rows.back().end(), 1e-9F);
  }
  return rows;
}

TEST(RowOps, MagnitudesAreThoseOfF64WhereverTheValuesLie) {
  OnEveryTarget([] {
    for (const std::vector<float>& r : DifficultRows()) {
      const row_ops::Magnitudes got = row_ops::MagnitudesOf(r);
      ASSERT_TRUE(AreTheSame(got, row_ops::ref::MagnitudesOf(r)) || !std::isfinite(got.largest));
      double sum = 0, largest = 0, smallest = HUGE_VAL;
      bool is_finite = true;
      for (const float value : r) {
        const double magnitude = std::fabs(double{value});
        is_finite = is_finite && std::isfinite(magnitude);
        sum += magnitude;
        largest = std::max(largest, magnitude);
        smallest = std::min(smallest, magnitude);
      }
      ASSERT_EQ(std::isfinite(got.largest), is_finite);
      if (!is_finite) {
        EXPECT_FALSE(std::isfinite(got.Sum()));
        continue;
      }
      EXPECT_EQ(double{got.largest}, largest);
      EXPECT_EQ(double{got.smallest}, smallest);
      EXPECT_NEAR(got.Sum(), sum, 0x1p-18 * sum);  // terms above the pivot, which is no more than the mean
      const double mean = sum / static_cast<double>(r.size());
      for (const double a : {0.0, mean / 2, mean}) {
        double squares = 0, terms = 0;
        for (const float value : r) {
          const double magnitude = std::fabs(double{value});
          squares += (magnitude - a) * (magnitude - a);
          terms += std::pow(std::fabs(magnitude - got.pivot) + std::fabs(got.pivot - a), 2);
        }
        EXPECT_NEAR(got.SquaresAbout(a), squares, 0x1p-18 * terms);
      }
    }
  });
}

TEST(RowOps, OfEqualMagnitudesNothingIsLeftAboutTheirMean) {
  OnEveryTarget([] {
    for (const size_t n : {3UL, 32UL, 1000UL, 4096UL}) {
      std::vector<float> r(n, 0.1F);
      for (size_t j = 0; j < n; j += 3) r[j] = -0.1F;
      const row_ops::Magnitudes got = row_ops::MagnitudesOf(r);
      EXPECT_EQ(got.Sum(), static_cast<double>(n) * double{0.1F});
      EXPECT_EQ(got.SquaresAbout(double{0.1F}), 0);
    }
  });
}

TEST(RowOps, EveryTargetReadsEveryHalfAndBfloat) {
  std::vector<uint16_t> all(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  OnEveryTarget([&] {
    for (const DType dtype : {DType::kF16, DType::kBf16}) {
      std::vector<float> got(all.size());
      row_ops::ReadRow({dtype, Shape{1, all.size()}, AsBytes(std::span<const uint16_t>(all))}, 0, got);
      for (size_t i = 0; i < all.size(); ++i) {
        const float expected = dtype == DType::kF16 ? ToFloat(F16{all[i]}) : ToFloat(Bf16{all[i]});
        ASSERT_TRUE(HasSameBits(got[i], expected)) << i;
      }
    }
  });
}

// Floats with every exponent and, of the bits that a narrow type drops, those around a tie.
std::vector<float> FloatsAroundTies() {
  std::vector<float> floats;
  for (uint32_t upper = 0; upper < 65536; ++upper) {
    for (const uint32_t lower : {0x0000U, 0x0001U, 0x0FFFU, 0x1000U, 0x1001U, 0x7FFFU, 0x8000U, 0x8001U, 0xFFFFU}) {
      floats.push_back(std::bit_cast<float>(upper << 16 | lower));
    }
  }
  return floats;
}

TEST(RowOps, EveryTargetNarrowsAsTheReference) {
  const std::vector<float> floats = FloatsAroundTies();
  OnEveryTarget([&] {
    for (const DType dtype : {DType::kF16, DType::kBf16, DType::kF32}) {
      std::vector<uint8_t> got(floats.size() * DTypeBytes(dtype) + 1), expected(got.size());
      EXPECT_EQ(row_ops::Narrow(floats, dtype, got.data() + 1),
                row_ops::ref::Narrow(floats, dtype, expected.data() + 1));
      EXPECT_EQ(got, expected);
    }
  });
}

TEST(RowOps, NarrowTellsWhenAFiniteValueBecameInfinite) {
  OnEveryTarget([] {
    for (const size_t n : {1UL, 8UL, 33UL}) {
      for (size_t at = 0; at < n; ++at) {
        std::vector<float> values(n, 1.0F);
        std::vector<uint8_t> to(2 * n);
        const auto fits = [&](float value, DType dtype) {
          values[at] = value;
          return row_ops::Narrow(values, dtype, to.data());
        };
        EXPECT_TRUE(fits(65519.0F, DType::kF16));
        EXPECT_FALSE(fits(-65520.0F, DType::kF16));
        EXPECT_TRUE(fits(-65520.0F, DType::kBf16));
        EXPECT_FALSE(fits(std::numeric_limits<float>::max(), DType::kBf16));
        EXPECT_TRUE(fits(std::numeric_limits<float>::infinity(), DType::kBf16));
        EXPECT_TRUE(fits(std::numeric_limits<float>::quiet_NaN(), DType::kF16));
      }
    }
  });
}

}  // namespace
}  // namespace df
