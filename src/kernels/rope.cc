#include "kernels/rope.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/rope.h"
#include "kernels/ref/rope.h"
#include "kernels/target.h"

namespace df::kernels {

void RopeAngles(KernelContext& context, std::span<const RopeSegment> segments, std::span<const int32_t> positions,
                MatView<float> cos, MatView<float> sin) {
  // Two calls of libm in f64 are some 40 ns, the time of 400 bytes.
  context.pool.ParallelFor(cos.rows, GrainFor(400 * cos.cols), [&](size_t begin, size_t end, size_t /*thread*/) {
    for (const RopeSegment& segment : segments) {
      for (size_t row = std::max(begin, segment.begin); row < std::min(end, segment.end); ++row) {
        const auto position = static_cast<float>(positions[row]);
        for (size_t i = 0; i < cos.cols; ++i) {
          const double angle = double{position * segment.inv_freq[i]};
          cos.Row(row)[i] = static_cast<float>(std::cos(angle)) * segment.magnitude;
          sin.Row(row)[i] = static_cast<float>(std::sin(angle)) * segment.magnitude;
        }
      }
    }
  });
}

void RotateHeads(KernelContext& context, const HeadRotation& rotation, MatView<float> x) {
  (IsScalarTarget() ? ref::RotateHeads : cpu::RotateHeads)(context, rotation, x);
}

}  // namespace df::kernels
