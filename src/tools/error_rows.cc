// How far the kernels are from f64.
#include <cmath>

#include "base/rng.h"
#include "kernels/linear.h"
#include "tools/linear_rows.h"
#include "tools/synthetic_weights.h"

namespace df::tools {
namespace {

constexpr size_t kOutputs = 512;  // enough for a mean over outputs, few enough for f64 in a moment
constexpr size_t kInputs = 4096;

// One variant of one matrix, with its weights as f64.
struct Oracle {
  explicit Oracle(KernelContext& context) {
    base.weight = SyntheticWeight(context, kOutputs, kInputs, 11);
    SyntheticDelta made;
    delta = kernels::PackDelta(context, made.Make(kOutputs, kInputs, 12));
    for (size_t row = 0; row < kOutputs; ++row) {
      for (size_t col = 0; col < kInputs; ++col) {
        base_values.push_back(base.weight.At(row, col));
        delta_values.push_back(delta.planes[0].At(row, col));
      }
    }
  }

  // Over all outputs: |y - exact| over |exact|, and over the variant's own part without column `outlier`.
  struct Errors {
    double of_y = 0, of_delta = 0;
  };
  Errors Compare(const float* x, const float* y, size_t outlier) const {
    double error = 0, size = 0, delta_size = 0;
    for (size_t row = 0; row < kOutputs; ++row) {
      double from_base = 0, from_delta = 0;
      for (size_t col = 0; col < kInputs; ++col) {
        from_base += base_values[row * kInputs + col] * static_cast<double>(x[col]);
        from_delta += delta_values[row * kInputs + col] * static_cast<double>(x[col]);
      }
      const double exact = from_base + from_delta;
      const double without_outlier =
          outlier < kInputs ? from_delta - delta_values[row * kInputs + outlier] * static_cast<double>(x[outlier])
                            : from_delta;
      error += (y[row] - exact) * (y[row] - exact);
      size += exact * exact;
      delta_size += without_outlier * without_outlier;
    }
    return {.of_y = std::sqrt(error / size), .of_delta = std::sqrt(error / delta_size)};
  }

  kernels::LinearWeight base;
  kernels::PackedDelta delta;
  std::vector<double> base_values, delta_values;
};

struct ErrorRow {
  const char* name;
  SignKernel sign_kernel;
  bool outlier;     // one activation 1000 times the largest of the others
  bool over_delta;  // relative to the variant's own part, not to y
};

constexpr ErrorRow kErrorRows[] = {{"lut_error", SignKernel::kLookup, false, true},
                                   {"lut_error_outlier", SignKernel::kLookup, true, true},
                                   {"exact_error", SignKernel::kExact, false, false}};

}  // namespace

std::vector<RowResult> MeasureErrorRows(KernelContext& context, const RowSelection& selection, size_t n_rows) {
  const std::string shape = std::to_string(kOutputs) + "x" + std::to_string(kInputs);
  const KernelOptions before = context.options;
  const Oracle oracle(context);
  Mat<float> x(1, kInputs), y(1, kOutputs);
  const kernels::LinearSegment segment = {.begin = 0, .end = 1, .delta = &oracle.delta};
  std::vector<RowResult> results;
  for (const ErrorRow& row : kErrorRows) {
    if (!Wants(selection, row.name)) continue;
    RowResult result = {
        .name = row.name, .shape = shape, .n_threads = context.pool.n_threads(), .samples = {}, .missing = {}};
    context.options.sign_kernel = row.sign_kernel;
    for (size_t sample = 0; sample < n_rows; ++sample) {
      for (size_t i = 0; i < kInputs; ++i) x.Row(0)[i] = static_cast<float>(2 * RandomUnit(sample, i) - 1);
      const size_t outlier = row.outlier ? RandomBits(sample, kInputs) % kInputs : kInputs;
      if (row.outlier) x.Row(0)[outlier] = 1000.0F;
      kernels::Linear(context, oracle.base, {&segment, 1}, x.view(), y.view());
      const Oracle::Errors errors = oracle.Compare(x.Row(0), y.Row(0), outlier);
      result.samples.push_back(row.over_delta ? errors.of_delta : errors.of_y);
    }
    results.push_back(std::move(result));
  }
  context.options = before;
  return results;
}

}  // namespace df::tools
