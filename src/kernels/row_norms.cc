#include "kernels/row_norms.h"

#include "base/check.h"
#include "kernels/cpu/row_norms.h"
#include "kernels/ref/row_norms.h"
#include "kernels/target.h"

namespace df::kernels {

Buffer<float> RowNorms(KernelContext& context, const PackedWeight& base, const PackedDelta& delta) {
  DF_CHECK(base.d_in == delta.d_in);
  Buffer<float> norms(delta.d_out);
  (IsScalarTarget() ? ref::RowNorms : cpu::RowNorms)(context, base, delta, norms.span());
  return norms;
}

}  // namespace df::kernels
