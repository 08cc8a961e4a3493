#include "codec/calibrate.h"

#include <gtest/gtest.h>

#include <array>

#include "codec/calibrate_fixture.h"
#include "codec/code.h"
#include "codec/output_target.h"

namespace df {
namespace {

using testing::Dense;
using testing::InputCase;
using testing::ValueOrDie;
using testing::Zeros;

// BF16 keeps 8 bits; f32 products over 50 columns and 200 tokens lose some 1e-6.
constexpr double kScaleTolerance = 0x1p-8 + 1e-5;

double Sign(const InputCase& weight, size_t i, size_t j) {
  return weight.fine_tune[i * weight.d_in + j] - weight.base[i * weight.d_in + j] >= 0 ? 1.0 : -1.0;
}

EncodedWeight EncodeFitted(const InputCase& weight, const char* code) {
  return ValueOrDie(Encode(weight.pool, weight.pair(), ValueOrDie(ParseCode(code)), &weight.inputs));
}

// s_i^T C s_i and sum_j S_ij G_ij of every row, S scaled by v.
struct RowTerms {
  std::vector<double> square, gain;
};
RowTerms TermsOf(const InputCase& weight, const std::vector<double>& v) {
  const Dense c = weight.Moment(), g = weight.Target();
  RowTerms terms{std::vector<double>(weight.d_out), std::vector<double>(weight.d_out)};
  for (size_t i = 0; i < weight.d_out; ++i) {
    for (size_t j = 0; j < weight.d_in; ++j) {
      const double p = Sign(weight, i, j) * v[j];
      terms.gain[i] += p * g[i][j];
      for (size_t k = 0; k < weight.d_in; ++k) terms.square[i] += p * c[j][k] * Sign(weight, i, k) * v[k];
    }
  }
  return terms;
}

// x of the symmetric positive definite system by Gauss.
std::vector<double> Solve(Dense a, std::vector<double> b) {
  const size_t n = b.size();
  for (size_t k = 0; k < n; ++k) {
    for (size_t i = k + 1; i < n; ++i) {
      const double factor = a[i][k] / a[k][k];
      for (size_t j = k; j < n; ++j) a[i][j] -= factor * a[k][j];
      b[i] -= factor * b[k];
    }
  }
  for (size_t k = n; k-- > 0;) {
    for (size_t j = k + 1; j < n; ++j) b[k] -= a[k][j] * b[j];
    b[k] /= a[k][k];
  }
  return b;
}

// v for u: ((S^T diag(u^2) S) o C) v = diag((diag(u) S)^T G).
std::vector<double> BestColumns(const InputCase& weight, const std::vector<double>& u) {
  const Dense c = weight.Moment(), g = weight.Target();
  Dense system = Zeros(weight.d_in, weight.d_in);
  std::vector<double> gain(weight.d_in);
  for (size_t i = 0; i < weight.d_out; ++i) {
    for (size_t j = 0; j < weight.d_in; ++j) {
      gain[j] += u[i] * Sign(weight, i, j) * g[i][j];
      for (size_t k = 0; k < weight.d_in; ++k) {
        system[j][k] += u[i] * u[i] * Sign(weight, i, j) * Sign(weight, i, k) * c[j][k];
      }
    }
  }
  return Solve(system, gain);
}

class CalibratedSign : public ::testing::TestWithParam<double> {
 protected:
  InputCase MadeCase(size_t d_out = 37, size_t d_in = 29) {
    std::vector<double> sizes(d_in);
    for (size_t j = 0; j < d_in; ++j) sizes[j] = 0.2 + 3.0 * RandomUnit(9, j) * RandomUnit(9, j);
    return {d_out, d_in, {.drift = GetParam(), .column_size = sizes}};
  }
};

TEST_P(CalibratedSign, HasTheBestScalarOfTheOutputs) {
  const InputCase weight = MadeCase();
  const RowTerms terms = TermsOf(weight, std::vector<double>(weight.d_in, 1.0));
  double gain = 0, square = 0;
  for (size_t i = 0; i < weight.d_out; ++i) {
    gain += terms.gain[i];
    square += terms.square[i];
  }
  const EncodedWeight encoded = EncodeFitted(weight, "scalar");
  EXPECT_NEAR(double{encoded.delta.planes[0].scale}, gain / square, 1e-5 * gain / square);
}

TEST_P(CalibratedSign, HasTheBestScaleOfEveryRow) {
  const InputCase weight = MadeCase();
  const RowTerms terms = TermsOf(weight, std::vector<double>(weight.d_in, 1.0));
  const EncodedWeight encoded = EncodeFitted(weight, "row");
  ASSERT_EQ(encoded.delta.planes[0].row_scale->dtype, DType::kBf16);
  for (size_t i = 0; i < weight.d_out; ++i) {
    const double expected = terms.gain[i] / terms.square[i];
    EXPECT_NEAR(double{FloatAt(*encoded.delta.planes[0].row_scale, i)}, expected,
                kScaleTolerance * std::fabs(expected));
  }
}

TEST_P(CalibratedSign, HasTheBestScaleOfEveryColumn) {
  const InputCase weight = MadeCase();
  const std::vector<double> expected = BestColumns(weight, std::vector<double>(weight.d_out, 1.0));
  const EncodedWeight encoded = EncodeFitted(weight, "column");
  for (size_t j = 0; j < weight.d_in; ++j) {
    EXPECT_NEAR(double{FloatAt(*encoded.delta.planes[0].col_scale, j)}, expected[j],
                kScaleTolerance * std::fabs(expected[j]) + 1e-6);
  }
}

TEST_P(CalibratedSign, RankOneDoesWhatAlternatingLeastSquaresInDoubleDoes) {
  const InputCase weight = MadeCase();
  const EncodedWeight start = ValueOrDie(EncodeSign(weight.pool, weight.pair(), {}));
  std::vector<double> u(weight.d_out), v(weight.d_in);
  for (size_t j = 0; j < weight.d_in; ++j) v[j] = double{FloatAt(*start.delta.planes[0].col_scale, j)};
  const auto best_rows = [&] {
    const RowTerms terms = TermsOf(weight, v);
    for (size_t i = 0; i < weight.d_out; ++i) u[i] = terms.gain[i] / terms.square[i];
  };
  for (int round = 0; round < kCalibrationRounds; ++round) {
    best_rows();
    v = BestColumns(weight, u);
  }
  best_rows();
  double expected = 0;  // the objective at the best u for v
  const RowTerms terms = TermsOf(weight, v);
  for (size_t i = 0; i < weight.d_out; ++i) expected -= terms.gain[i] * terms.gain[i] / terms.square[i];
  const EncodedWeight encoded = EncodeFitted(weight, "rank1");
  const double got = weight.Objective(encoded.delta);
  // Scales off by a relative 2^-9 at most lose the square of it of |D^ x|^2 in the mean, at most all of it aligned.
  EXPECT_NEAR(got, expected, 4 * 0x1p-16 * std::fabs(expected));
  EXPECT_LT(got, weight.Objective(start.delta));
}

TEST_P(CalibratedSign, IsNeverWorseThanSimplerScalesOnTheOutputs) {
  const InputCase weight = MadeCase();
  const double none = 0, slack = 1e-4 * std::fabs(weight.Objective(EncodeFitted(weight, "rank1").delta));
  double last = none;
  for (const char* code : {"scalar", "row", "rank1", "planes2", "planes3"}) {
    const double objective = weight.Objective(EncodeFitted(weight, code).delta);
    EXPECT_LT(objective, last + slack) << code;
    last = objective;
  }
  for (const char* code : {"scalar", "row", "column", "rank1", "planes2"}) {
    const EncodedWeight plain = ValueOrDie(Encode(weight.pool, weight.pair(), ValueOrDie(ParseCode(code))));
    EXPECT_LT(weight.Objective(EncodeFitted(weight, code).delta), weight.Objective(plain.delta) + slack) << code;
  }
}

TEST_P(CalibratedSign, IsTheSameWithAnyNumberOfThreads) {
  const InputCase weight = MadeCase(150, 70);
  for (const char* code : {"scalar", "row", "rank1", "planes2", "rank1+lowrank:2", "lowrank:3"}) {
    std::vector<std::vector<uint8_t>> results;
    for (const size_t n_threads : {size_t{1}, size_t{3}}) {
      ThreadPool pool(n_threads);
      const WeightInputs inputs = GatherInputs(pool, weight.inputs.fine_tune, weight.inputs.coded, MomentBytes(70));
      const auto encoded = ValueOrDie(Encode(pool, weight.pair(), ValueOrDie(ParseCode(code)), &inputs));
      std::vector<uint8_t>& bytes = results.emplace_back();
      const auto append = [&](Bytes part) { bytes.insert(bytes.end(), part.begin(), part.end()); };
      for (const SignPlane& plane : encoded.delta.planes) {
        append(AsBytes(std::span<const float>(&plane.scale, 1)));
        if (plane.row_scale) append(plane.row_scale->bytes);
        if (plane.col_scale) append(plane.col_scale->bytes);
      }
      for (const LowRank& part : encoded.delta.low_rank) {
        append(part.a.bytes);
        append(part.b.bytes);
      }
    }
    EXPECT_EQ(results[0], results[1]) << code;
  }
}

INSTANTIATE_TEST_SUITE_P(Drift, CalibratedSign, ::testing::Values(0.0, 0.3),
                         [](const auto& test) { return test.param > 0 ? "WithDrift" : "Without"; });

constexpr std::array<size_t, 3> kFilled = {3, 17, 31};

TEST(Calibrate, FitsTheColumnsThatTheInputsFill) {
  // Nine in ten of the inputs' energy lies in three columns: what is left of their differences must be least.
  std::vector<double> sizes(40, 0.1);
  for (const size_t j : kFilled) sizes[j] = 10;
  const InputCase weight(24, 40, {.column_size = sizes});
  const auto error_of = [&](const EncodedWeight& encoded) {
    const WeightPair pair = weight.pair();
    const Residual residual(pair, encoded.delta);
    Mat<float> d(1, 40), r(1, 40);
    double error = 0;
    for (size_t i = 0; i < 24; ++i) {
      residual.Read(i, d.view(), r.view());
      for (const size_t j : kFilled) error += double{r.Row(0)[j]} * double{r.Row(0)[j]};
    }
    return error;
  };
  const EncodedWeight plain = ValueOrDie(EncodeSign(weight.pool, weight.pair(), {}));
  EXPECT_LT(error_of(EncodeFitted(weight, "rank1")), 0.8 * error_of(plain));
  const double energy = OutputEnergy(weight.pool, weight.pair(), UnchangedWeight(24, 40).delta, weight.inputs);
  const auto share = [&](const EncodedWeight& encoded) {
    return OutputEnergy(weight.pool, weight.pair(), encoded.delta, weight.inputs) / energy;
  };
  EXPECT_LT(share(EncodeFitted(weight, "rank1")), 0.8 * share(plain));
  EXPECT_LT(share(EncodeFitted(weight, "lowrank:3")), 0.1) << "three columns are of rank three";
}

TEST(Calibrate, FitsRowsBySumsOverTokensWhereTheMomentDoesNotFit) {
  for (const double drift : {0.0, 0.3}) {
    const InputCase without(37, 29, {.drift = drift, .with_moment = false});
    ASSERT_FALSE(without.inputs.HasMoment());
    for (const char* code : {"scalar", "row", "rank1"}) {
      const EncodedWeight encoded = EncodeFitted(without, code);
      const SignPlane& plane = encoded.delta.planes[0];
      std::vector<double> v(29, 1.0);
      for (size_t j = 0; plane.col_scale && j < 29; ++j) v[j] = double{FloatAt(*plane.col_scale, j)};
      double gain_sum = 0, square_sum = 0;
      for (size_t i = 0; i < 37; ++i) {
        double gain = 0, square = 0;
        for (size_t t = 0; t < 200; ++t) {
          double y = 0, z = 0;
          for (size_t j = 0; j < 29; ++j) {
            const double x = double{without.inputs.coded.Row(t)[j]};
            y += double{without.fine_tune[i * 29 + j]} * double{without.inputs.fine_tune.Row(t)[j]} -
                 double{without.base[i * 29 + j]} * x;
            z += Sign(without, i, j) * v[j] * x;
          }
          gain += y * z;
          square += z * z;
        }
        gain_sum += gain;
        square_sum += square;
        if (!plane.row_scale) continue;
        const double expected = gain / square;
        // the f32 product by the base cancels: 2^-24 of |W x| beside |D x|, some 5 times as large
        EXPECT_NEAR(double{FloatAt(*plane.row_scale, i)}, expected, kScaleTolerance * std::fabs(expected) + 1e-5);
      }
      if (!plane.row_scale) {
        EXPECT_NEAR(double{plane.scale}, gain_sum / square_sum, 1e-4 * gain_sum / square_sum);
      }
    }
  }
}

TEST(Calibrate, KeepsTheScalesOfTheDifferencesWhereInputsSayNothing) {
  InputCase weight(8, 16, {.n_tokens = 4, .column_size = std::vector<double>(16, 0.0), .with_moment = false});
  const EncodedWeight plain = ValueOrDie(EncodeSign(weight.pool, weight.pair(), {.scale = ScaleKind::kRow}));
  const EncodedWeight encoded = EncodeFitted(weight, "row");
  for (size_t i = 0; i < 8; ++i) {
    const double expected = double{FloatAt(*plain.delta.planes[0].row_scale, i)};
    EXPECT_NEAR(double{FloatAt(*encoded.delta.planes[0].row_scale, i)}, expected, 0x1p-8 * expected);
  }
}

TEST(Calibrate, LeavesAnUnchangedWeightOut) {
  InputCase weight(8, 16, {});
  weight.fine_tune = weight.base;
  for (const char* code : {"rank1", "planes2+lowrank:2", "lowrank:2"}) {
    EXPECT_TRUE(EncodeFitted(weight, code).delta.IsBase()) << code;
  }
}

}  // namespace
}  // namespace df
