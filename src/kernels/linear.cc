#include "kernels/linear.h"

#include "base/check.h"
#include "kernels/cpu/linear.h"
#include "kernels/ref/linear.h"
#include "kernels/target.h"

namespace df::kernels {

void Linear(KernelContext& context, const LinearWeight& base, std::span<const LinearSegment> segments,
            MatView<const float> x, MatView<float> y) {
  DF_CHECK(x.cols == base.weight.d_in);
  if (IsScalarTarget()) {
    ref::Linear(context, base, segments, x, y);
  } else {
    cpu::Linear(context, base, segments, x, y);
  }
}

}  // namespace df::kernels
