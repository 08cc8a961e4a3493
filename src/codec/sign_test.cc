#include "codec/sign.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <numbers>
#include <string>
#include <vector>

#include "base/float16.h"
#include "base/rng.h"
#include "format/checkpoint.h"
#include "kernels/target.h"
#include "testing/status_matchers.h"

namespace df {
namespace {

const std::string kDeltas = std::string(DELTAFOLD_SOURCE_DIR) + "/tests/golden/deltas/";
constexpr double kScaleTolerance = 1e-6;  // relative; the reference sums in f64 and rounds once
constexpr double kRank1Tolerance = 1e-5;  // relative; limited by where both iterations stop
constexpr double kErrorTolerance = 1e-5;  // relative; the reference stores f32

struct FineTuneCase {
  std::string set;
  std::string name;
};
void PrintTo(const FineTuneCase& fine_tune, std::ostream* out) { *out << fine_tune.set << "/" << fine_tune.name; }
const std::vector<FineTuneCase> kCases = {{"llama3-gqa", "ft0"}, {"llama3-gqa", "ft1"}, {"qwen3-tied", "ft0"},
                                          {"qwen3-tied", "ft1"}, {"llama-odd", "ft0"},  {"llama-odd", "ft1"},
                                          {"llama-odd", "ft2"}};

std::vector<float> Floats(const TensorView& view) {
  std::vector<float> values(view.elements());
  ReadFloats(view, 0, values);
  return values;
}

void ExpectNear(const std::vector<float>& got, const std::vector<float>& want, double tolerance,
                const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  // An unchanged row has scale 0, where the reference's SVD leaves noise of the order of 2^-53.
  const double noise = 1e-14 * static_cast<double>(*std::ranges::max_element(want));
  for (size_t i = 0; i < got.size(); ++i) {
    const auto expected = static_cast<double>(want[i]);
    ASSERT_NEAR(static_cast<double>(got[i]), expected, tolerance * std::fabs(expected) + noise) << what << " at " << i;
  }
}

// Bits where the reference says that rounding does not decide: |R| > 1e-6 of the first plane's scale.
size_t CountDifferentBits(const WeightPair& pair, Bytes got, Bytes want, const std::vector<float>& alpha) {
  const size_t d_in = MatrixCols(pair.base);
  const std::vector<float> w = Floats(pair.fine_tune), w0 = Floats(pair.base);
  size_t n_different = 0;
  for (size_t i = 0; i < w.size(); ++i) {
    const float a = alpha.size() == 1 ? alpha[0] : alpha[i / d_in];
    if (std::fabs(std::fabs(w[i] - w0[i]) - a) <= 1e-6F * a) continue;
    const size_t byte = i / d_in * SignRowBytes(d_in) + i % d_in / 8;
    n_different += ((got[byte] ^ want[byte]) >> (i % d_in % 8)) & 1U;
  }
  return n_different;
}

class GoldenDelta : public ::testing::TestWithParam<FineTuneCase> {
 protected:
  void SetUp() override {
    const std::string set = kDeltas + GetParam().set;
    base_ = *Checkpoint::Open(set + "/base");
    fine_tune_ = *Checkpoint::Open(set + "/" + GetParam().name);
    reference_ = *SafetensorsFile::Open(set + "/" + GetParam().name + "/reference.safetensors");
  }

  // Calls body(pair) for every weight that the reference has a code of.
  template <typename Body>
  void ForEachWeight(const Body& body) {
    size_t n_weights = 0;
    for (const std::string& name : base_->names()) {
      if (reference_->FindOrNull(name + ".bits") == nullptr) continue;
      body(WeightPair{name, base_->FindOrNull(name)->view, fine_tune_->FindOrNull(name)->view});
      ++n_weights;
    }
    EXPECT_GE(n_weights, 14U);
  }
  const TensorView& Reference(const WeightPair& pair, const std::string& key) {
    const TensorView* view = reference_->FindOrNull(pair.name + "." + key);
    EXPECT_NE(view, nullptr) << pair.name << "." << key;
    return *view;
  }
  double ReferenceError(const WeightPair& pair, size_t code) {
    return static_cast<double>(Floats(Reference(pair, "errors"))[code]);
  }
  Result<EncodedWeight> Encode(const WeightPair& pair, SignOptions options) { return EncodeSign(pool_, pair, options); }

  ThreadPool pool_{2};
  std::shared_ptr<const Checkpoint> base_, fine_tune_;
  std::shared_ptr<const SafetensorsFile> reference_;
};

TEST_P(GoldenDelta, FirstPlaneHasTheReferenceBitsAndScalarScale) {
  ForEachWeight([&](const WeightPair& pair) {
    const EncodedWeight encoded = testing::ValueOrDie(Encode(pair, {.scale = ScaleKind::kScalar, .n_planes = 1}));
    const double alpha = static_cast<double>(FloatAt(Reference(pair, "alpha"), 0));
    if (encoded.delta.IsBase()) {
      EXPECT_EQ(alpha, 0.0) << pair.name;
      return;
    }
    const SignPlane& plane = encoded.delta.planes[0];
    EXPECT_TRUE(std::ranges::equal(plane.bits, Reference(pair, "bits").bytes)) << pair.name;
    EXPECT_NEAR(static_cast<double>(plane.scale), alpha, kScaleTolerance * alpha) << pair.name;
    EXPECT_NEAR(encoded.quality.relative_frobenius, ReferenceError(pair, 0), kErrorTolerance) << pair.name;
  });
}

TEST_P(GoldenDelta, RowScalesAreTheReference) {
  ForEachWeight([&](const WeightPair& pair) {
    const EncodedWeight encoded = testing::ValueOrDie(Encode(pair, {.scale = ScaleKind::kRow, .n_planes = 1}));
    if (encoded.delta.IsBase()) return;
    ExpectNear(Floats(*encoded.delta.planes[0].row_scale), Floats(Reference(pair, "alpha_row")), kScaleTolerance,
               pair.name);
    EXPECT_NEAR(encoded.quality.relative_frobenius, ReferenceError(pair, 1), kErrorTolerance) << pair.name;
  });
}

TEST_P(GoldenDelta, Rank1ScalesAreTheTopSingularPair) {
  ForEachWeight([&](const WeightPair& pair) {
    const EncodedWeight encoded = testing::ValueOrDie(Encode(pair, {.scale = ScaleKind::kRank1, .n_planes = 1}));
    if (encoded.delta.IsBase()) return;
    const SignPlane& plane = encoded.delta.planes[0];
    ExpectNear(Floats(*plane.row_scale), Floats(Reference(pair, "rank1_u")), kRank1Tolerance, pair.name + " u");
    ExpectNear(Floats(*plane.col_scale), Floats(Reference(pair, "rank1_v")), kRank1Tolerance, pair.name + " v");
    EXPECT_NEAR(encoded.quality.relative_frobenius, ReferenceError(pair, 2), kErrorTolerance) << pair.name;
  });
}

TEST_P(GoldenDelta, SecondPlaneCodesWhatTheFirstLeft) {
  const std::vector<std::pair<ScaleKind, std::string>> kinds = {{ScaleKind::kScalar, "scalar"},
                                                                {ScaleKind::kRow, "row"}};
  for (size_t kind = 0; kind < kinds.size(); ++kind) {
    ForEachWeight([&](const WeightPair& pair) {
      const EncodedWeight encoded = testing::ValueOrDie(Encode(pair, {.scale = kinds[kind].first, .n_planes = 2}));
      if (encoded.delta.IsBase()) return;
      const SignPlane& plane = encoded.delta.planes[1];
      const std::string key = "plane2_" + kinds[kind].second;
      const std::vector<float> first = Floats(Reference(pair, kind == 0 ? "alpha" : "alpha_row"));
      EXPECT_EQ(CountDifferentBits(pair, plane.bits, Reference(pair, key + "_bits").bytes, first), 0U) << pair.name;
      const std::vector<float> scale = kind == 0 ? std::vector<float>{plane.scale} : Floats(*plane.row_scale);
      ExpectNear(scale, Floats(Reference(pair, key + "_alpha")), kScaleTolerance, pair.name);
      EXPECT_NEAR(encoded.quality.relative_frobenius, ReferenceError(pair, 3 + kind), kErrorTolerance) << pair.name;
    });
  }
}

INSTANTIATE_TEST_SUITE_P(All, GoldenDelta, ::testing::ValuesIn(kCases), [](const auto& test) {
  std::string name = test.param.set + "_" + test.param.name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

// A pair of f32 matrices of our own making.
struct MadePair {
  std::vector<float> base, fine_tune;
  size_t d_out, d_in;

  MadePair(size_t rows, size_t cols, uint64_t seed)
      : base(rows * cols), fine_tune(rows * cols), d_out(rows), d_in(cols) {
    for (size_t i = 0; i < base.size(); ++i) {
      base[i] = static_cast<float>(RandomUnit(seed, 2 * i) - 0.5);
      fine_tune[i] = base[i] + static_cast<float>(0.1 * (RandomUnit(seed, 2 * i + 1) - 0.5));
    }
  }
  WeightPair pair() const { return {"w", View(base), View(fine_tune)}; }
  TensorView View(const std::vector<float>& values) const {
    return {DType::kF32, Shape{d_out, d_in}, AsBytes(std::span<const float>(values))};
  }
};

std::vector<uint8_t> AllBytes(const EncodedWeight& encoded) {
  std::vector<uint8_t> bytes;
  for (const auto& buffer : encoded.owned) bytes.insert(bytes.end(), buffer.span().begin(), buffer.span().end());
  for (const SignPlane& plane : encoded.delta.planes) {
    const auto scale = std::bit_cast<std::array<uint8_t, 4>>(plane.scale);
    bytes.insert(bytes.end(), scale.begin(), scale.end());
  }
  return bytes;
}

TEST(Sign, GivesTheSameBytesWithAnyNumberOfThreads) {
  for (const auto& [rows, cols] : {std::pair<size_t, size_t>{1, 1}, {3, 5}, {67, 129}, {300, 1025}}) {
    const MadePair made(rows, cols, rows);
    for (const ScaleKind kind : {ScaleKind::kScalar, ScaleKind::kRow, ScaleKind::kColumn, ScaleKind::kRank1}) {
      ThreadPool one(1), two(2), three(3);
      const EncodedWeight a = testing::ValueOrDie(EncodeSign(one, made.pair(), {.scale = kind, .n_planes = 3}));
      const EncodedWeight b = testing::ValueOrDie(EncodeSign(two, made.pair(), {.scale = kind, .n_planes = 3}));
      const EncodedWeight c = testing::ValueOrDie(EncodeSign(three, made.pair(), {.scale = kind, .n_planes = 3}));
      EXPECT_EQ(AllBytes(a), AllBytes(b));
      EXPECT_EQ(AllBytes(a), AllBytes(c));
      EXPECT_EQ(a.quality.relative_frobenius, c.quality.relative_frobenius);
    }
  }
}

TEST(Sign, GivesTheSameBytesOnEveryVectorTarget) {
  const MadePair made(67, 1029, 3);
  ThreadPool pool(2);
  for (const ScaleKind kind : {ScaleKind::kScalar, ScaleKind::kRow, ScaleKind::kColumn, ScaleKind::kRank1}) {
    std::vector<EncodedWeight> encoded;
    for (const std::string& target : kernels::AvailableTargets()) {
      ASSERT_TRUE(kernels::SetTarget(target).ok());
      encoded.push_back(testing::ValueOrDie(EncodeSign(pool, made.pair(), {.scale = kind, .n_planes = 2})));
      EXPECT_EQ(AllBytes(encoded.back()), AllBytes(encoded.front())) << target;
      EXPECT_EQ(encoded.back().quality.relative_frobenius, encoded.front().quality.relative_frobenius) << target;
    }
  }
  ASSERT_TRUE(kernels::SetTarget("auto").ok());
}

TEST(Sign, Rank1IsNeverWorseThanRowOrColumnNorThoseThanScalar) {
  ThreadPool pool(2);
  for (uint64_t seed = 0; seed < 30; ++seed) {
    const MadePair made(1 + seed % 9, 1 + seed * 7 % 31, seed);
    const auto error = [&](ScaleKind kind) {
      const auto encoded = EncodeSign(pool, made.pair(), {.scale = kind, .n_planes = 1});
      return encoded->quality.relative_frobenius;
    };
    // Scales are rounded to f32, which may cost 2^-24 of an error near zero.
    EXPECT_LE(error(ScaleKind::kRow), error(ScaleKind::kScalar) + 1e-7);
    EXPECT_LE(error(ScaleKind::kColumn), error(ScaleKind::kScalar) + 1e-7);
    EXPECT_LE(error(ScaleKind::kRank1), error(ScaleKind::kRow) + 1e-7);
    EXPECT_LE(error(ScaleKind::kRank1), error(ScaleKind::kColumn) + 1e-7);
  }
}

TEST(Sign, ColumnScalesAreTheMeansOfTheColumns) {
  ThreadPool pool(3);
  const MadePair made(67, 29, 9);
  const EncodedWeight encoded = testing::ValueOrDie(EncodeSign(pool, made.pair(), {.scale = ScaleKind::kColumn}));
  const std::vector<float> scale = Floats(*encoded.delta.planes[0].col_scale);
  EXPECT_FALSE(encoded.delta.planes[0].row_scale);
  for (size_t j = 0; j < made.d_in; ++j) {
    double sum = 0;
    for (size_t i = 0; i < made.d_out; ++i) {
      sum += std::fabs(double{made.fine_tune[i * made.d_in + j]} - double{made.base[i * made.d_in + j]});
    }
    EXPECT_NEAR(double{scale[j]}, sum / 67, 1e-6 * sum / 67) << j;
  }
}

// E (x - a sign x)^2 = E x^2 - (E |x|)^2 for a = E |x|: half the energy of a Laplace distribution, 1 - 2 / pi of a
// Gaussian one. Of 160 000 draws the mean strays by 0.4 %.
TEST(Sign, LosesWhatTheDistributionOfTheDifferenceSays) {
  ThreadPool pool(2);
  MadePair made(400, 400, 1);
  const auto energy_error = [&](const auto& draw) {
    for (size_t i = 0; i < made.base.size(); ++i) {
      made.base[i] = 0;
      made.fine_tune[i] = static_cast<float>(draw(1 - RandomUnit(77, 2 * i), RandomUnit(77, 2 * i + 1)));
    }
    const auto encoded = testing::ValueOrDie(EncodeSign(pool, made.pair(), {.scale = ScaleKind::kScalar}));
    return encoded.quality.relative_frobenius * encoded.quality.relative_frobenius;
  };
  const double laplace = energy_error([](double u, double v) { return v < 0.5 ? std::log(u) : -std::log(u); });
  const double gaussian =
      energy_error([](double u, double v) { return std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * v); });
  EXPECT_NEAR(laplace, 0.5, 0.02);
  EXPECT_NEAR(gaussian, 0.363, 0.01);
}

TEST(Sign, EveryPlaneShrinksTheError) {
  ThreadPool pool(1);
  const MadePair made(40, 100, 5);
  double last = 1;
  for (size_t n_planes = 1; n_planes <= kMaxPlanes; ++n_planes) {
    const EncodedWeight encoded = testing::ValueOrDie(EncodeSign(pool, made.pair(), {.n_planes = n_planes}));
    EXPECT_LT(encoded.quality.relative_frobenius, last);
    // D^ of one plane is a projection of D: |D - D^|^2 + |D^|^2 = |D|^2 and cosine = |D^| / |D|.
    const double sine = encoded.quality.relative_frobenius;
    if (n_planes == 1) {
      EXPECT_NEAR(encoded.quality.cosine, std::sqrt(1 - sine * sine), 1e-6);
    }
    last = encoded.quality.relative_frobenius;
  }
}

TEST(Sign, ZeroAndMinusZeroCountAsPlus) {
  ThreadPool pool(1);
  MadePair made(1, 9, 1);
  made.base = {0.0F, 0.0F, -0.0F, 1, 1, 1, 1, 1, 1};
  made.fine_tune = {0.0F, -0.0F, 0.0F, 2, 0, 1, 2, 0, 0};
  const EncodedWeight encoded = testing::ValueOrDie(EncodeSign(pool, made.pair(), {.scale = ScaleKind::kScalar}));
  ASSERT_EQ(encoded.delta.planes[0].bits.size(), 2U);
  EXPECT_EQ(encoded.delta.planes[0].bits[0], 0b01101111);
  EXPECT_EQ(encoded.delta.planes[0].bits[1], 0b00000000) << "column 8 is minus, padding is zero";
}

TEST(Sign, AnUnchangedWeightIsAbsentWhateverItsStoredType) {
  ThreadPool pool(1);
  MadePair made(2, 3, 1);
  made.base = made.fine_tune = {1, 2, 3, 4, 5, 6};
  const std::vector<Bf16> narrow = {ToBf16(1), ToBf16(2), ToBf16(3), ToBf16(4), ToBf16(5), ToBf16(6)};
  WeightPair pair = made.pair();
  pair.base = {DType::kBf16, Shape{2, 3}, AsBytes(std::span<const Bf16>(narrow))};
  const EncodedWeight encoded = testing::ValueOrDie(EncodeSign(pool, pair, {}));
  EXPECT_TRUE(encoded.delta.IsBase());
  EXPECT_EQ(encoded.quality.cosine, 1.0);
}

TEST(Sign, RefusesNaNAndInfinityNamingTensorAndPlace) {
  ThreadPool pool(2);
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    MadePair made(4, 6, 1);
    made.fine_tune[13] = bad;
    const auto encoded = EncodeSign(pool, made.pair(), {});
    ASSERT_FALSE(encoded.ok());
    EXPECT_NE(encoded.status().message().find("tensor w of the fine-tune"), std::string::npos);
    EXPECT_NE(encoded.status().message().find("row 2, column 1"), std::string::npos) << encoded.status().message();
    made.base[0] = bad;
    EXPECT_NE(EncodeSign(pool, made.pair(), {}).status().message().find("of the base"), std::string::npos);
  }
  MadePair made(1, 2, 1);
  made.base = {3e38F, 0};
  made.fine_tune = {-3e38F, 0};
  EXPECT_NE(EncodeSign(pool, made.pair(), {}).status().message().find("overflows"), std::string::npos);
}

}  // namespace
}  // namespace df
