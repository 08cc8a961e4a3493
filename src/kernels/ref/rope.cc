#include "kernels/ref/rope.h"

#include "kernels/ref/norm.h"

namespace df::kernels::ref {
namespace {

void NormHeads(KernelContext& context, const HeadRotation& rotation, size_t head_dim, MatView<float> x) {
  for (size_t at = 0; at < x.cols; at += head_dim) {
    const MatView<float> head(x.data + at, x.rows, head_dim, x.stride);
    ref::RmsNorm(context, rotation.norm, rotation.eps, head, head);
  }
}

}  // namespace

void RotateHeads(KernelContext& context, const HeadRotation& rotation, MatView<float> x) {
  const size_t half = rotation.cos.cols;
  NormHeads(context, rotation, 2 * half, x);
  for (size_t row = 0; row < x.rows; ++row) {
    const float* c = rotation.cos.Row(row);
    const float* s = rotation.sin.Row(row);
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
