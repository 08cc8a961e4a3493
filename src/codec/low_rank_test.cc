#include "codec/low_rank.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numbers>

#include "base/float16.h"
#include "base/rng.h"
#include "codec/code.h"
#include "codec/decode.h"
#include "codec/residual.h"
#include "codec/survey.h"
#include "testing/refusal.h"
#include "testing/status_matchers.h"

namespace df {
namespace {

using testing::ExpectRefusal;
using testing::ValueOrDie;

double Normal(uint64_t seed, size_t i) {
  const double radius = std::sqrt(-2 * std::log(1 - RandomUnit(seed, 2 * i)));
  return radius * std::cos(2 * std::numbers::pi * RandomUnit(seed, 2 * i + 1));
}

// A base of Gaussian weights of deviation 0.02, and it with a product of `rank` fused in and rounded to `dtype`.
struct FusedAdapter {
  size_t d_out, d_in;
  std::vector<double> product;  // exact
  std::vector<uint8_t> base, fine_tune;
  DType dtype;

  FusedAdapter(size_t rows, size_t cols, size_t rank, double size, DType stored = DType::kBf16)
      : d_out(rows),
        d_in(cols),
        product(rows * cols),
        base(rows * cols * DTypeBytes(stored)),
        fine_tune(base.size()),
        dtype(stored) {
    const double factor = std::sqrt(size) / std::pow(static_cast<double>(std::max<size_t>(rank, 1)), 0.25);
    std::vector<double> b(rows * rank), a(rank * cols);
    for (size_t i = 0; i < b.size(); ++i) b[i] = factor * Normal(1, i);
    for (size_t i = 0; i < a.size(); ++i) a[i] = factor * Normal(2, i);
    for (size_t i = 0; i < rows; ++i) {
      for (size_t j = 0; j < cols; ++j) {
        double& sum = product[i * cols + j];
        for (size_t k = 0; k < rank; ++k) sum += b[i * rank + k] * a[k * cols + j];
        const float w = Store(base, i * cols + j, 0.02 * Normal(3, i * cols + j));
        Store(fine_tune, i * cols + j, double{w} + sum);
      }
    }
  }

  float Store(std::vector<uint8_t>& bytes, size_t i, double value) const {
    const auto single = static_cast<float>(value);
    const Bf16 bf16 = ToBf16(single);
    const F16 f16 = ToF16(single);
    const void* from = dtype == DType::kF32    ? static_cast<const void*>(&single)
                       : dtype == DType::kBf16 ? static_cast<const void*>(&bf16)
                                               : static_cast<const void*>(&f16);
    std::memcpy(bytes.data() + i * DTypeBytes(dtype), from, DTypeBytes(dtype));
    return FloatAt({dtype, Shape{bytes.size() / DTypeBytes(dtype)}, bytes}, i);
  }
  TensorView View(const std::vector<uint8_t>& bytes) const { return {dtype, Shape{d_out, d_in}, bytes}; }
  WeightPair pair() const { return {"w", View(base), View(fine_tune)}; }

  // |B A - product| over all entries.
  double DistanceToTruth(const LinearDelta& delta) const {
    const std::vector<float> zeros(d_out * d_in);
    const TensorView zero{DType::kF32, Shape{d_out, d_in}, AsBytes(std::span<const float>(zeros))};
    const RowDecoder decoder(zero, delta);
    std::vector<float> row(d_in);
    double sum = 0;
    for (size_t i = 0; i < d_out; ++i) {
      decoder.Decode(i, row);
      for (size_t j = 0; j < d_in; ++j) sum += std::pow(double{row[j]} - product[i * d_in + j], 2);
    }
    return std::sqrt(sum);
  }
};

TEST(LowRank, FindsAFusedAdapterWithinTheRoundingOfTheWeight) {
  ThreadPool pool(2);
  for (const DType dtype : {DType::kBf16, DType::kF16, DType::kF32}) {
    for (const auto& [rows, cols] : {std::pair<size_t, size_t>{256, 256}, {96, 400}, {400, 96}}) {
      const FusedAdapter made(rows, cols, 8, 0.003, dtype);
      const RoundingNoise noise = MeasureRoundingNoise(pool, made.pair().fine_tune);
      const EncodedWeight encoded = ValueOrDie(EncodeLowRank(pool, made.pair(), 0));
      ASSERT_EQ(encoded.delta.low_rank.size(), 1U);
      EXPECT_EQ(MatrixRows(encoded.delta.low_rank[0].a), 8U) << DTypeName(dtype) << " " << rows << " x " << cols;
      double energy = 0;
      for (const double value : made.product) energy += value * value;
      // Of f32 weights the rounding is finer than what sums in f32 keep of the product itself.
      const double sizes = std::sqrt(static_cast<double>(rows)) + std::sqrt(static_cast<double>(cols));
      const double resolved = dtype == DType::kF32 ? std::sqrt(energy) * 0x1.0p-24 * sizes : 0;
      EXPECT_LE(made.DistanceToTruth(encoded.delta), 2 * std::sqrt(noise.energy) + resolved) << DTypeName(dtype);
    }
  }
}

// Rounding to nearest is uniform within an ulp: the energy of the noise is what the exponents say.
TEST(LowRank, ExpectsTheNoiseThatRoundingMakes) {
  ThreadPool pool(2);
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    const FusedAdapter made(300, 300, 4, 0.003, dtype);
    double energy = 0;
    for (size_t i = 0; i < made.product.size(); ++i) {
      const double stored = FloatAt(made.pair().fine_tune, i), start = FloatAt(made.pair().base, i);
      energy += std::pow(stored - start - made.product[i], 2);
    }
    EXPECT_NEAR(MeasureRoundingNoise(pool, made.pair().fine_tune).energy, energy, 0.03 * energy) << DTypeName(dtype);
  }
}

// Light training in bf16: a share of the weights an ulp up or down, at random or by the signs of a product of rank one.
enum class Moves { kAtRandom, kByDirection };
FusedAdapter MovedByUlps(size_t d_out, size_t d_in, double share, Moves moves) {
  FusedAdapter made(d_out, d_in, 0, 0);
  for (size_t i = 0; i < made.product.size(); ++i) {
    if (RandomUnit(5, i) >= share) continue;
    uint16_t bits;
    std::memcpy(&bits, made.fine_tune.data() + 2 * i, 2);
    const uint64_t direction = RandomBits(6, i / d_in) ^ RandomBits(7, i % d_in);
    const bool up = (moves == Moves::kAtRandom ? RandomBits(8, i) : direction) % 2 == 0;
    bits = static_cast<uint16_t>(up ? bits + 1 : bits - 1);
    std::memcpy(made.fine_tune.data() + 2 * i, &bits, 2);
  }
  return made;
}

TEST(LowRank, KeepsWhatIsNoLargerThanRounding) {
  ThreadPool pool(2);
  const Code lowrank = {.kind = CodeKind::kLowRank};
  EXPECT_TRUE(ValueOrDie(Encode(pool, FusedAdapter(200, 300, 0, 0).pair(), lowrank)).delta.IsBase()) << "unchanged";
  for (const Moves moves : {Moves::kAtRandom, Moves::kByDirection}) {
    for (const double share : {0.03, 0.06, 0.1, 0.12}) {
      const FusedAdapter made = MovedByUlps(200, 300, share, moves);
      const EncodedWeight encoded = ValueOrDie(Encode(pool, made.pair(), lowrank));
      EXPECT_FALSE(encoded.delta.IsBase()) << share;
      EXPECT_EQ(MeasureQuality(pool, made.pair(), encoded.delta).relative_frobenius, 0) << share;
    }
  }
}

// D of full rank: most of its values lie above the noise.
TEST(LowRank, KeepsADifferenceThatIsNoProduct) {
  ThreadPool pool(2);
  const FusedAdapter made(600, 600, 600, 0.003);
  const EncodedWeight encoded = ValueOrDie(Encode(pool, made.pair(), {.kind = CodeKind::kLowRank}));
  EXPECT_EQ(CodeName(encoded.delta), "raw BF16");
}

TEST(LowRank, StoresFewChangedRowsAsTheyAre) {
  ThreadPool pool(2);
  FusedAdapter made(400, 96, 0, 0);
  for (size_t i = 0; i < 5 * 96; ++i) made.Store(made.fine_tune, i, 0.03 * Normal(9, i));
  const EncodedWeight encoded = ValueOrDie(Encode(pool, made.pair(), {.kind = CodeKind::kLowRank}));
  EXPECT_EQ(CodeName(encoded.delta), "rows 5");
}

// A difference whose factors vanish in every type that a code has.
TEST(Code, StoresNothingForNoChangeAlone) {
  ThreadPool pool(1);
  FusedAdapter made(40, 30, 0, 0, DType::kF32);
  std::fill(made.base.begin(), made.base.end(), uint8_t{0});
  made.fine_tune = made.base;
  for (size_t i = 0; i < made.product.size(); ++i) made.Store(made.fine_tune, i, 1e-30 * Normal(9, i));
  for (const char* text : {"scalar", "rank1", "planes2", "lowrank", "lowrank:4", "rank1+lowrank:2", "int8", "exact"}) {
    EXPECT_FALSE(ValueOrDie(Encode(pool, made.pair(), ValueOrDie(ParseCode(text)))).delta.IsBase()) << text;
  }
}

TEST(LowRank, AGivenRankIsKeptAndMoreIsNeverWorse) {
  ThreadPool pool(2);
  const FusedAdapter made(120, 90, 40, 0.02);
  double last = 1;
  for (const size_t rank : {size_t{1}, size_t{4}, size_t{16}, size_t{64}, size_t{256}}) {
    const EncodedWeight encoded = ValueOrDie(EncodeLowRank(pool, made.pair(), rank));
    EXPECT_EQ(MatrixRows(encoded.delta.low_rank[0].a), std::min<size_t>(rank, 90));
    EXPECT_LE(encoded.quality.relative_frobenius, last + 1e-6);
    last = encoded.quality.relative_frobenius;
  }
}

TEST(LowRank, LowersTheErrorOfSigns) {
  ThreadPool pool(2);
  const FusedAdapter made(128, 160, 12, 0.01);
  const double signs = ValueOrDie(Encode(pool, made.pair(), Code{})).quality.relative_frobenius;
  double last = signs;
  for (const size_t rank : {size_t{2}, size_t{8}, size_t{32}}) {
    const EncodedWeight encoded = ValueOrDie(Encode(pool, made.pair(), {.rank = rank}));
    EXPECT_EQ(encoded.delta.planes.size(), 1U);
    EXPECT_LT(encoded.quality.relative_frobenius, last);
    last = encoded.quality.relative_frobenius;
  }
  EXPECT_LT(last, 0.8 * signs);
}

TEST(LowRank, GivesTheSameBytesWithAnyNumberOfThreads) {
  const FusedAdapter made(300, 200, 5, 0.01);
  ThreadPool one(1), three(3);
  for (const Code& code : {Code{.kind = CodeKind::kLowRank}, Code{.rank = 6}}) {
    const EncodedWeight a = ValueOrDie(Encode(one, made.pair(), code));
    const EncodedWeight b = ValueOrDie(Encode(three, made.pair(), code));
    EXPECT_TRUE(std::ranges::equal(a.delta.low_rank[0].a.bytes, b.delta.low_rank[0].a.bytes));
    EXPECT_TRUE(std::ranges::equal(a.delta.low_rank[0].b.bytes, b.delta.low_rank[0].b.bytes));
    EXPECT_EQ(a.quality.relative_frobenius, b.quality.relative_frobenius);
  }
}

TEST(LowRank, RefusesNaNAndInfinityByPlace) {
  ThreadPool pool(2);
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    FusedAdapter made(40, 30, 2, 0.01, DType::kF32);
    std::memcpy(made.fine_tune.data() + (7 * 30 + 5) * 4, &bad, 4);
    for (const Code& code : {Code{.kind = CodeKind::kLowRank}, Code{.kind = CodeKind::kByteRows}, Code{.rank = 2}}) {
      ExpectRefusal(Encode(pool, made.pair(), code), StatusCode::kCorrupt, {"tensor w", "row 7, column 5"});
    }
    ExpectRefusal(SurveyWeight(pool, made.pair(), {.kind = SurveyKind::kMatrix}), StatusCode::kCorrupt,
                  {"row 7, column 5"});
  }
}

const Candidate* Find(const std::vector<Candidate>& candidates, const std::string& text) {
  for (const Candidate& candidate : candidates) {
    if (CodeText(candidate.code) == text) return &candidate;
  }
  return nullptr;
}

TEST(Survey, MeasuresWhatEncodingGives) {
  ThreadPool pool(2);
  for (const DType dtype : {DType::kBf16, DType::kF16, DType::kF32}) {
    for (const size_t rank : {size_t{30}, size_t{6}}) {
      const FusedAdapter made(160, 130, rank, 0.01, dtype);
      const std::vector<Candidate> candidates =
          ValueOrDie(SurveyWeight(pool, made.pair(), {.kind = SurveyKind::kMatrix}));
      EXPECT_GE(candidates.size(), 17U);
      for (const Candidate& candidate : candidates) {
        const EncodedWeight encoded = ValueOrDie(Encode(pool, made.pair(), candidate.code));
        const std::string what = CodeText(candidate.code) + " of " + std::string(DTypeName(dtype));
        EXPECT_EQ(StoredBytes(encoded.delta), candidate.bytes) << what;
        // Sums of f32 values tell nothing below 2^-9 of the difference.
        EXPECT_NEAR(encoded.quality.relative_frobenius, candidate.error, 0.002 * candidate.error + 0x1p-9) << what;
      }
    }
  }
}

TEST(Survey, WeightsMovedByAnUlpAreNoFusedAdapter) {
  ThreadPool pool(2);
  for (const Moves moves : {Moves::kAtRandom, Moves::kByDirection}) {
    for (const double share : {0.06, 0.09, 0.1, 0.12}) {
      const FusedAdapter made = MovedByUlps(120, 160, share, moves);
      const auto candidates = ValueOrDie(SurveyWeight(pool, made.pair(), {.kind = SurveyKind::kMatrix}));
      for (const Candidate& candidate : candidates) {
        EXPECT_EQ(candidate.IsLossless(), candidate.code.kind == CodeKind::kExact) << CodeText(candidate.code);
      }
      const size_t chosen = ValueOrDie(ChooseByError({candidates}, {"w"}, 0.1))[0];
      const EncodedWeight encoded = ValueOrDie(Encode(pool, made.pair(), candidates[chosen].code));
      EXPECT_LE(MeasureQuality(pool, made.pair(), encoded.delta).relative_frobenius, 0.1) << share;
    }
  }
}

// The weights of one row are so large that their rounding covers what all others changed by.
TEST(Survey, ALargeRowHidesNoChangeOfOthers) {
  ThreadPool pool(2);
  FusedAdapter made(120, 160, 0, 0);
  for (size_t i = 0; i < made.product.size(); ++i) {
    const double w = i < 160 ? 40 * Normal(3, i) : 0.02 * Normal(3, i);
    const float stored = made.Store(made.base, i, w);
    made.Store(made.fine_tune, i, double{stored} + (i < 160 ? 40 * Normal(4, i) : 0.002 * Normal(4, i)));
  }
  for (const Candidate& candidate : ValueOrDie(SurveyWeight(pool, made.pair(), {.kind = SurveyKind::kMatrix}))) {
    EXPECT_EQ(candidate.IsLossless(), candidate.code.kind == CodeKind::kExact) << CodeText(candidate.code);
  }
}

TEST(Survey, FindsFusedAdaptersOfHighRank) {
  ThreadPool pool(2);
  for (const size_t rank : {size_t{64}, size_t{96}}) {
    const FusedAdapter made(512, 512, rank, 0.003);
    const auto candidates = ValueOrDie(SurveyWeight(pool, made.pair(), {.kind = SurveyKind::kMatrix}));
    const std::string text = "lowrank:" + std::to_string(rank);
    ASSERT_NE(Find(candidates, text), nullptr);
    EXPECT_TRUE(Find(candidates, text)->IsLossless());
    const EncodedWeight encoded = ValueOrDie(Encode(pool, made.pair(), Find(candidates, text)->code));
    EXPECT_EQ(StoredBytes(encoded.delta), Find(candidates, text)->bytes);
    const RoundingNoise noise = MeasureRoundingNoise(pool, made.pair().fine_tune);
    EXPECT_LE(made.DistanceToTruth(encoded.delta), 2 * std::sqrt(noise.energy));
  }
}

TEST(Survey, OffersAMatrixBytesOnlyForFewRows) {
  ThreadPool pool(2);
  const FusedAdapter changed(64, 96, 64, 0.01);
  EXPECT_EQ(Find(ValueOrDie(SurveyWeight(pool, changed.pair(), {.kind = SurveyKind::kMatrix})), "int8"), nullptr);
  EXPECT_NE(Find(ValueOrDie(SurveyWeight(pool, changed.pair(), {.kind = SurveyKind::kVocabulary})), "int8"), nullptr);
  FusedAdapter few(64, 96, 0, 0);
  for (size_t i = 0; i < 5 * 96; ++i) few.Store(few.fine_tune, i, 0.03 * Normal(9, i));
  EXPECT_NE(Find(ValueOrDie(SurveyWeight(pool, few.pair(), {.kind = SurveyKind::kMatrix})), "int8"), nullptr);
}

// Sixteen new rows beside 200 that hardly moved.
TEST(Survey, NewRowsDoNotHideWhatOldOnesLose) {
  ThreadPool pool(2);
  const FusedAdapter made(216, 96, 96, 0.0001, DType::kF32);
  const WeightPair pair{
      "w", {DType::kF32, Shape{200, 96}, std::span(made.base).first(200 * 96 * 4)}, made.pair().fine_tune};
  const auto candidates = ValueOrDie(SurveyWeight(pool, pair, {.kind = SurveyKind::kVocabulary}));
  EXPECT_GT(Find(candidates, "scalar")->error, 0.5);
  const size_t chosen = ValueOrDie(ChooseByError({candidates}, {"w"}, 0.2))[0];
  const EncodedWeight encoded = ValueOrDie(Encode(pool, pair, candidates[chosen].code));
  const RowDecoder decoder(pair.base, encoded.delta);
  std::vector<float> row(96);
  double lost = 0, changed = 0;
  for (size_t i = 0; i < 200; ++i) {
    decoder.Decode(i, row);
    for (size_t j = 0; j < 96; ++j) {
      lost += std::pow(double{row[j]} - FloatAt(pair.fine_tune, i * 96 + j), 2);
      changed += std::pow(double{FloatAt(pair.base, i * 96 + j)} - FloatAt(pair.fine_tune, i * 96 + j), 2);
    }
  }
  EXPECT_LE(std::sqrt(lost / changed), 0.2) << CodeText(candidates[chosen].code);
}

TEST(Survey, AFusedAdapterLosesNothingAtItsRank) {
  ThreadPool pool(2);
  const FusedAdapter made(256, 256, 8, 0.003);
  const auto candidates = ValueOrDie(SurveyWeight(pool, made.pair(), {.kind = SurveyKind::kMatrix}));
  ASSERT_NE(Find(candidates, "lowrank:8"), nullptr);
  EXPECT_EQ(Find(candidates, "lowrank:8")->loss, 0);
  EXPECT_GT(Find(candidates, "lowrank:4")->loss, 0);
  const size_t by_bytes = ValueOrDie(ChooseByBytes({candidates}, 1'000'000))[0];
  EXPECT_EQ(CodeText(candidates[by_bytes].code), "lowrank:8");
  const size_t by_error = ValueOrDie(ChooseByError({candidates}, {"w"}, 0.0))[0];
  EXPECT_EQ(CodeText(candidates[by_error].code), "lowrank:8");
}

TEST(Survey, AnUnchangedWeightCostsNothing) {
  ThreadPool pool(1);
  const FusedAdapter made(20, 20, 0, 0);
  const auto candidates = ValueOrDie(SurveyWeight(pool, made.pair(), {.kind = SurveyKind::kMatrix}));
  ASSERT_EQ(candidates.size(), 1U);
  EXPECT_EQ(candidates[0].bytes, 0U);
}

}  // namespace
}  // namespace df
