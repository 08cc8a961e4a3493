#include "codec/whitened.h"

#include <gtest/gtest.h>

#include "codec/calibrate_fixture.h"
#include "codec/code.h"
#include "codec/output_target.h"
#include "linalg/factor.h"

namespace df {
namespace {

using testing::Dense;
using testing::InputCase;
using testing::ValueOrDie;
using testing::Zeros;

// Columns of sizes from 0.05 to 5: whitening matters.
InputCase Skewed(double drift) {
  std::vector<double> sizes(30);
  for (size_t j = 0; j < 30; ++j) sizes[j] = 0.05 * std::pow(100.0, static_cast<double>(j) / 29);
  return {41, 30, {.drift = drift, .column_size = sizes}};
}

// L of C = L L^T in f64.
Dense Factor(const Dense& c) {
  const size_t n = c.size();
  Dense lower = Zeros(n, n);
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j <= i; ++j) {
      double sum = c[i][j];
      for (size_t k = 0; k < j; ++k) sum -= lower[i][k] * lower[j][k];
      lower[i][j] = i == j ? std::sqrt(sum) : sum / lower[j][j];
    }
  }
  return lower;
}

TEST(Whitened, ReachesTheBestOfItsRank) {
  for (const double drift : {0.0, 0.2}) {
    const InputCase weight = Skewed(drift);
    // The singular values of G L^-T: what no rank can do better than.
    const Dense lower = Factor(weight.Moment()), g = weight.Target();
    Mat<float> h(41, 30);
    double energy = 0;
    for (size_t i = 0; i < 41; ++i) {
      std::vector<double> row(30);
      for (size_t j = 0; j < 30; ++j) {
        row[j] = g[i][j];
        for (size_t k = 0; k < j; ++k) row[j] -= lower[j][k] * row[k];
        row[j] /= lower[j][j];
        h.Row(i)[j] = static_cast<float>(row[j]);
        energy += row[j] * row[j];
      }
    }
    const linalg::Svd exact = ValueOrDie(linalg::ExactSvd(h.view()));
    double best = 0;
    for (const size_t rank : {size_t{1}, size_t{4}, size_t{12}}) {
      best = 0;
      for (size_t k = 0; k < rank; ++k) best -= double{exact.s[k]} * double{exact.s[k]};
      const Code code{.kind = CodeKind::kLowRank, .rank = rank};
      const EncodedWeight fitted = ValueOrDie(Encode(weight.pool, weight.pair(), code, &weight.inputs));
      const EncodedWeight plain = ValueOrDie(Encode(weight.pool, weight.pair(), code));
      // F16 factors are off by 2^-12 each, of which the square counts; the range is found to some 1e-4 of the tail.
      EXPECT_NEAR(weight.Objective(fitted.delta), best, 1e-3 * energy) << rank;
      EXPECT_LT(weight.Objective(fitted.delta), weight.Objective(plain.delta)) << rank;
    }
  }
}

TEST(Whitened, AddsToSignsWhatTheyLeave) {
  const InputCase weight = Skewed(0.2);
  double last = HUGE_VAL;
  for (const char* code : {"rank1", "rank1+lowrank:1", "rank1+lowrank:4", "rank1+lowrank:16"}) {
    const EncodedWeight fitted =
        ValueOrDie(Encode(weight.pool, weight.pair(), ValueOrDie(ParseCode(code)), &weight.inputs));
    const double objective = weight.Objective(fitted.delta);
    EXPECT_LT(objective, last) << code;
    last = objective;
  }
  const EncodedWeight plain = ValueOrDie(Encode(weight.pool, weight.pair(), ValueOrDie(ParseCode("rank1+lowrank:16"))));
  EXPECT_LT(last, weight.Objective(plain.delta));
}

}  // namespace
}  // namespace df
