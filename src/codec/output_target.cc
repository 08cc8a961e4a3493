#include "codec/output_target.h"

#include "codec/row_ops.h"

namespace df {

OutputTarget::OutputTarget(const WeightPair& pair, const LinearDelta& others, const WeightInputs& inputs)
    : pair_(pair), inputs_(inputs), residual_(pair, others) {
  DF_CHECK(inputs.HasMoment());
}

void OutputTarget::Read(size_t first, MatView<float> memory, MatView<float> g) const {
  residual_.Read(first, g, memory);
  linalg::Multiply(memory, inputs_.moment.view(), g);
  if (!inputs_.HasDrift()) return;
  for (size_t i = 0; i < g.rows; ++i) row_ops::ReadRow(pair_.fine_tune, first + i, memory.RowSpan(i));
  linalg::AddProduct(memory, inputs_.drift.view(), g);
}

double Dot(std::span<const float> a, std::span<const float> b) {
  constexpr size_t kLanes = 8;
  double lanes[kLanes] = {};
  size_t j = 0;
  for (; j + kLanes <= a.size(); j += kLanes) {
    for (size_t k = 0; k < kLanes; ++k) lanes[k] += double{a[j + k]} * double{b[j + k]};
  }
  for (size_t k = 0; j + k < a.size(); ++k) lanes[k] += double{a[j + k]} * double{b[j + k]};
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

double OutputEnergy(ThreadPool& pool, const WeightPair& pair, const LinearDelta& delta, const WeightInputs& inputs) {
  DF_CHECK(inputs.HasMoment());
  const Residual residual(pair, delta);
  Buffer<double> energies(residual.rows());
  Mat<float> memory(2 * pool.n_threads() * kBlockRows, residual.cols());
  ForEachBlock(pool, residual.rows(), [&](size_t first, size_t n, size_t thread) {
    const size_t at = 2 * thread * kBlockRows;
    const MatView<float> r = memory.Rows(at, at + n), product = memory.Rows(at + kBlockRows, at + kBlockRows + n);
    residual.Read(first, product, r);
    linalg::Multiply(r, inputs.moment.view(), product);
    for (size_t i = 0; i < n; ++i) energies[first + i] = Dot(r.RowSpan(i), product.RowSpan(i));
  });
  double sum = 0;
  for (const double energy : energies.span()) sum += energy;
  return sum;
}

double SignalEnergy(ThreadPool& pool, const TensorView& weight, const WeightInputs* inputs) {
  const size_t rows = MatrixRows(weight), cols = MatrixCols(weight);
  Buffer<double> energies(rows);
  Mat<float> memory(2 * pool.n_threads() * kBlockRows, cols);
  ForEachBlock(pool, rows, [&](size_t first, size_t n, size_t thread) {
    const size_t at = 2 * thread * kBlockRows;
    const MatView<float> w = memory.Rows(at, at + n), product = memory.Rows(at + kBlockRows, at + kBlockRows + n);
    for (size_t i = 0; i < n; ++i) row_ops::ReadRow(weight, first + i, w.RowSpan(i));
    if (inputs) linalg::Multiply(w, inputs->moment.view(), product);
    for (size_t i = 0; i < n; ++i) energies[first + i] = Dot(w.RowSpan(i), inputs ? product.RowSpan(i) : w.RowSpan(i));
  });
  double sum = 0;
  for (const double energy : energies.span()) sum += energy;
  return sum;
}

}  // namespace df
