#include "kernels/ref/norm.h"

#include <cmath>

namespace df::kernels::ref {
namespace {

void NormVector(const float* x, const float* weight, size_t d, float eps, float* out) {
  double squares = 0;
  for (size_t i = 0; i < d; ++i) squares += double{x[i]} * double{x[i]};
  const double inverse = 1.0 / std::sqrt(squares / static_cast<double>(d) + double{eps});
  for (size_t i = 0; i < d; ++i) out[i] = static_cast<float>(double{x[i]} * inverse * double{weight[i]});
}

}  // namespace

void RmsNorm(KernelContext& /*context*/, std::span<const NormSegment> segments, float eps, MatView<const float> x,
             MatView<float> out) {
  for (const NormSegment& segment : segments) {
    for (size_t row = segment.begin; row < segment.end; ++row) {
      NormVector(x.Row(row), segment.weight, x.cols, eps, out.Row(row));
    }
  }
}

void AddRmsNorm(KernelContext& /*context*/, std::span<const NormSegment> segments, float eps,
                MatView<const float> added, MatView<float> x, MatView<float> out) {
  for (const NormSegment& segment : segments) {
    for (size_t row = segment.begin; row < segment.end; ++row) {
      for (size_t i = 0; i < x.cols; ++i) x.Row(row)[i] += added.Row(row)[i];
      NormVector(x.Row(row), segment.weight, x.cols, eps, out.Row(row));
    }
  }
}

void AddTo(KernelContext& /*context*/, MatView<const float> x, MatView<float> y) {
  for (size_t row = 0; row < y.rows; ++row) {
    for (size_t i = 0; i < y.cols; ++i) y.Row(row)[i] += x.Row(row)[i];
  }
}

}  // namespace df::kernels::ref
