#include "kernels/ref/activation.h"

#include <cmath>

namespace df::kernels::ref {

void SiluMul(KernelContext& /*context*/, MatView<const float> gate, MatView<const float> up, MatView<float> out) {
  for (size_t row = 0; row < out.rows; ++row) {
    for (size_t i = 0; i < out.cols; ++i) {
      const double z = gate.Row(row)[i];
      const auto silu = static_cast<float>(z / (1.0 + std::exp(-z)));
      out.Row(row)[i] = silu * up.Row(row)[i];
    }
  }
}

}  // namespace df::kernels::ref
