#include "kernels/ref/rope.h"

namespace df::kernels::ref {

void ApplyRope(KernelContext& /*context*/, MatView<const float> cos, MatView<const float> sin, MatView<float> x) {
  const size_t half = cos.cols;
  for (size_t row = 0; row < x.rows; ++row) {
    const float* c = cos.Row(row);
    const float* s = sin.Row(row);
    for (size_t at = 0; at < x.cols; at += 2 * half) {
      float* head = x.Row(row) + at;
      for (size_t i = 0; i < half; ++i) {
        const double a = head[i];
        const double b = head[i + half];
        head[i] = static_cast<float>(a * double{c[i]} - b * double{s[i]});
        head[i + half] = static_cast<float>(b * double{c[i]} + a * double{s[i]});
      }
    }
  }
}

}  // namespace df::kernels::ref
