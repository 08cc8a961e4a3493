#include "codec/inputs.h"

#include "linalg/products.h"

namespace df {
namespace {

constexpr double kRidge = 1e-2;  // of the mean of the diagonal

void Scale(MatView<float> a, float factor) {
  for (size_t row = 0; row < a.rows; ++row) {
    for (float& value : a.RowSpan(row)) value *= factor;
  }
}

// C = (1/n) x^T x + ridge; of inputs that are all zero, the ridge of ones.
Mat<float> MomentOf(ThreadPool& pool, MatView<const float> x) {
  Mat<float> moment(x.cols, x.cols);
  linalg::AddTransposedProduct(pool, x, x, moment.view());
  Scale(moment.view(), 1.0F / static_cast<float>(x.rows));
  double trace = 0;
  for (size_t j = 0; j < x.cols; ++j) trace += double{moment.Row(j)[j]};
  const double mean = trace / static_cast<double>(x.cols);
  const auto ridge = static_cast<float>(kRidge * (mean > 0 ? mean : 1.0));
  for (size_t j = 0; j < x.cols; ++j) moment.Row(j)[j] += ridge;
  return moment;
}

// E = (1/n) (x - x^)^T x^.
Mat<float> DriftOf(ThreadPool& pool, MatView<const float> fine_tune, MatView<const float> coded) {
  Mat<float> drift(coded.cols, coded.cols), squares(coded.cols, coded.cols);
  linalg::AddTransposedProduct(pool, fine_tune, coded, drift.view());
  linalg::AddTransposedProduct(pool, coded, coded, squares.view());
  for (size_t row = 0; row < drift.rows(); ++row) {
    for (size_t j = 0; j < drift.cols(); ++j) {
      drift.Row(row)[j] = (drift.Row(row)[j] - squares.Row(row)[j]) / static_cast<float>(coded.rows);
    }
  }
  return drift;
}

}  // namespace

WeightInputs GatherInputs(ThreadPool& pool, MatView<const float> fine_tune, MatView<const float> coded,
                          uint64_t max_moment_bytes) {
  DF_CHECK(fine_tune.rows == coded.rows && fine_tune.cols == coded.cols && coded.rows > 0);
  WeightInputs inputs{.fine_tune = fine_tune, .coded = coded, .moment = {}, .drift = {}};
  if (MomentBytes(coded.cols) > max_moment_bytes) return inputs;
  inputs.moment = MomentOf(pool, coded);
  if (inputs.HasDrift()) inputs.drift = DriftOf(pool, fine_tune, coded);
  return inputs;
}

uint64_t MomentBytes(size_t d_in) { return uint64_t{3} * sizeof(float) * d_in * d_in; }

}  // namespace df
