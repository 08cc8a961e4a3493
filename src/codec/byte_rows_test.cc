#include "codec/byte_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/rng.h"
#include "codec/decode.h"
#include "testing/status_matchers.h"

namespace df {
namespace {

using testing::ValueOrDie;

// An f32 table [base_rows, d_in] and one of `rows` rows that differs in every third.
struct Tables {
  size_t base_rows, rows, d_in;
  std::vector<float> base, fine_tune;

  Tables(size_t from, size_t to, size_t width)
      : base_rows(from), rows(to), d_in(width), base(from * width), fine_tune(to * width) {
    for (size_t i = 0; i < base.size(); ++i) base[i] = static_cast<float>(RandomUnit(1, i) - 0.5);
    for (size_t i = 0; i < fine_tune.size(); ++i) {
      const bool changed = i / d_in % 3 == 0 || i >= base.size();
      fine_tune[i] = (i < base.size() ? base[i] : 0) + (changed ? static_cast<float>(RandomUnit(2, i) - 0.4) : 0);
    }
  }
  WeightPair pair() const {
    return {"w",
            {DType::kF32, Shape{base_rows, d_in}, AsBytes(std::span<const float>(base))},
            {DType::kF32, Shape{rows, d_in}, AsBytes(std::span<const float>(fine_tune))}};
  }
};

TEST(ByteRows, EveryEntryIsWithinHalfAStep) {
  ThreadPool pool(2);
  for (const size_t rows : {size_t{50}, size_t{61}, size_t{40}}) {
    const Tables made(50, rows, 33);
    const WeightPair pair = made.pair();
    const EncodedWeight encoded = ValueOrDie(EncodeByteRows(pool, pair));
    ASSERT_TRUE(encoded.delta.byte_rows);
    const RowDecoder decoder(pair.base, encoded.delta);
    std::vector<float> row(33);
    double error[2] = {}, difference[2] = {};  // of the rows that both have, and of new ones
    size_t place = 0;
    for (size_t r = 0; r < rows; ++r) {
      const bool stored = r % 3 == 0 || r >= 50;
      ASSERT_EQ(stored, place < encoded.delta.byte_rows->index.size() &&
                            encoded.delta.byte_rows->index[place] == static_cast<int32_t>(r));
      decoder.Decode(r, row);
      const double step = stored ? double{FloatAt(encoded.delta.byte_rows->step, place)} : 0;
      for (size_t j = 0; j < 33; ++j) {
        const double want = made.fine_tune[r * 33 + j], start = r < 50 ? made.base[r * 33 + j] : 0;
        ASSERT_LE(std::fabs(double{row[j]} - want), step / 2 * (1 + 1e-5) + 2 * 0x1.0p-24) << r << ", " << j;
        error[r < 50 ? 0 : 1] += std::pow(double{row[j]} - want, 2);
        difference[r < 50 ? 0 : 1] += std::pow(want - start, 2);
      }
      place += stored ? 1 : 0;
    }
    const double common = std::sqrt(error[0] / difference[0]);
    const double added = rows > 50 ? std::sqrt(error[1] / difference[1]) : 0;
    EXPECT_NEAR(encoded.quality.relative_frobenius, std::max(common, added), 1e-5);
  }
}

TEST(ByteRows, TakesTheSmallestAndTheLargestRows) {
  ThreadPool pool(1);
  Tables made(3, 3, 4);
  made.fine_tune = made.base = std::vector<float>(12, 0.0F);
  made.fine_tune[0] = 1e-44F;  // its step has no reciprocal
  made.fine_tune[5] = -3e38F;
  const EncodedWeight encoded = ValueOrDie(EncodeByteRows(pool, made.pair()));
  const auto& q = encoded.delta.byte_rows->values.bytes;
  EXPECT_EQ(static_cast<int8_t>(q[0]), 0);
  EXPECT_EQ(static_cast<int8_t>(q[5]), -127);
  EXPECT_TRUE(std::isfinite(encoded.quality.relative_frobenius));
  made.fine_tune = made.base;
  EXPECT_TRUE(ValueOrDie(EncodeByteRows(pool, made.pair())).delta.IsBase());
}

}  // namespace
}  // namespace df
