#include "kernels/machine_limits.h"

#include "base/check.h"
#include "kernels/cpu/machine_limits.h"
#include "kernels/target.h"

namespace df::kernels {

MachineLimits MeasureMachineLimits(KernelContext& context) {
  DF_CHECK(!IsScalarTarget());
  return cpu::MeasureMachineLimits(context);
}

}  // namespace df::kernels
