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
          EXPECT_TRUE(HasSameBits(is.sum, want.sum) && HasSameBits(is.squares, want.squares)) << n;
          EXPECT_TRUE(is.smallest == want.smallest && is.largest == want.largest) << n;
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
      const row_ops::Magnitudes got_sizes = row_ops::MagnitudesOf(r), sizes = row_ops::ref::MagnitudesOf(r);
      EXPECT_TRUE(HasSameBits(got_sizes.sum, sizes.sum) && HasSameBits(sizes.sum, row_ops::AbsSum(r))) << n;
      EXPECT_TRUE(HasSameBits(got_sizes.squares, sizes.squares)) << n;
      EXPECT_TRUE(got_sizes.smallest == sizes.smallest && got_sizes.largest == sizes.largest) << n;
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
