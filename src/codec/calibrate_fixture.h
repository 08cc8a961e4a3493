// For tests of codes that are fitted to outputs: a weight with inputs, and everything about it in f64 by plain loops.
#ifndef DELTAFOLD_CODEC_CALIBRATE_FIXTURE_H_
#define DELTAFOLD_CODEC_CALIBRATE_FIXTURE_H_

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "base/rng.h"
#include "codec/inputs.h"
#include "codec/residual.h"
#include "testing/status_matchers.h"

namespace df::testing {

inline double NormalDraw(uint64_t seed, size_t i) {
  const double radius = std::sqrt(-2 * std::log(1 - RandomUnit(seed, 2 * i)));
  return radius * std::cos(2 * std::numbers::pi * RandomUnit(seed, 2 * i + 1));
}

using Dense = std::vector<std::vector<double>>;

inline Dense Zeros(size_t rows, size_t cols) { return Dense(rows, std::vector<double>(cols)); }

// Gaussian differences on a base of zeros; inputs of which column j is `column_size[j]` times a Gaussian, mixed a
// little.
struct InputCase {
  size_t d_out, d_in;
  std::vector<float> base, fine_tune;  // F32
  Mat<float> x, coded;                 // [n_tokens, d_in]
  WeightInputs inputs;

  struct Options {
    size_t n_tokens = 200;
    double drift = 0;                      // of the coded model's inputs
    std::vector<double> column_size = {};  // empty: ones
    bool with_moment = true;
  };

  InputCase(size_t rows, size_t cols, const Options& options)
      : d_out(rows),
        d_in(cols),
        base(rows * cols),
        fine_tune(rows * cols),
        x(options.n_tokens, cols),
        coded(options.n_tokens, cols) {
    for (size_t i = 0; i < rows * cols; ++i) {
      base[i] = static_cast<float>(0.1 * NormalDraw(1, i));
      fine_tune[i] = base[i] + static_cast<float>(0.02 * NormalDraw(2, i));
    }
    for (size_t t = 0; t < options.n_tokens; ++t) {
      const double shared = NormalDraw(3, t);  // what makes C more than a diagonal
      for (size_t j = 0; j < cols; ++j) {
        const double size = options.column_size.empty() ? 1.0 : options.column_size[j];
        const double value = size * (NormalDraw(4, t * cols + j) + 0.5 * shared);
        x.Row(t)[j] = static_cast<float>(value);
        coded.Row(t)[j] = static_cast<float>(value + options.drift * size * NormalDraw(5, t * cols + j));
      }
    }
    const MatView<const float> other = options.drift > 0 ? coded.view() : x.view();
    inputs = GatherInputs(pool, x.view(), other, options.with_moment ? MomentBytes(cols) : 0);
  }

  WeightPair pair() const {
    const auto view = [&](const std::vector<float>& values) {
      return TensorView{DType::kF32, Shape{d_out, d_in}, AsBytes(std::span<const float>(values))};
    };
    return {"w", view(base), view(fine_tune)};
  }

  // C, ridge included.
  Dense Moment() const {
    const MatView<const float> v = inputs.coded;
    Dense c = Zeros(d_in, d_in);
    double trace = 0;
    for (size_t i = 0; i < d_in; ++i) {
      for (size_t j = 0; j < d_in; ++j) {
        for (size_t t = 0; t < v.rows; ++t) c[i][j] += double{v.Row(t)[i]} * double{v.Row(t)[j]};
        c[i][j] /= static_cast<double>(v.rows);
      }
      trace += c[i][i];
    }
    for (size_t i = 0; i < d_in; ++i) c[i][i] += 1e-2 * trace / static_cast<double>(d_in);
    return c;
  }

  // G of the whole difference: D C + W_ft E.
  Dense Target() const {
    const Dense c = Moment();
    Dense e = Zeros(d_in, d_in);
    for (size_t t = 0; t < x.rows(); ++t) {
      for (size_t i = 0; i < d_in; ++i) {
        const double moved = double{inputs.fine_tune.Row(t)[i]} - double{inputs.coded.Row(t)[i]};
        for (size_t j = 0; j < d_in; ++j) {
          e[i][j] += moved * double{inputs.coded.Row(t)[j]} / static_cast<double>(x.rows());
        }
      }
    }
    Dense g = Zeros(d_out, d_in);
    for (size_t i = 0; i < d_out; ++i) {
      for (size_t k = 0; k < d_in; ++k) {
        const double w = double{fine_tune[i * d_in + k]}, d = w - double{base[i * d_in + k]};
        for (size_t j = 0; j < d_in; ++j) g[i][j] += d * c[k][j] + w * e[k][j];
      }
    }
    return g;
  }

  // What every part D^ minimises: tr(D^ C D^T) - 2 tr(G D^T).
  double Objective(const LinearDelta& delta) const {
    const Dense c = Moment(), g = Target();
    const WeightPair weights = pair();
    const Residual residual(weights, delta);
    Mat<float> d(1, d_in), r(1, d_in);
    double sum = 0;
    for (size_t i = 0; i < d_out; ++i) {
      residual.Read(i, d.view(), r.view());
      for (size_t j = 0; j < d_in; ++j) {
        const double decoded = double{d.Row(0)[j]} - double{r.Row(0)[j]};
        double product = 0;
        for (size_t k = 0; k < d_in; ++k) product += (double{d.Row(0)[k]} - double{r.Row(0)[k]}) * c[k][j];
        sum += decoded * (product - 2 * g[i][j]);
      }
    }
    return sum;
  }

  mutable ThreadPool pool{2};
};

}  // namespace df::testing

#endif  // DELTAFOLD_CODEC_CALIBRATE_FIXTURE_H_
