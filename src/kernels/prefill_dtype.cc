#include "kernels/prefill_dtype.h"

#include "kernels/cpu/dot_bf16.h"
#include "kernels/target.h"

namespace df::kernels {

Status CheckPrefillDtype(PrefillDtype dtype) {
  if (dtype == PrefillDtype::kF32 || IsScalarTarget()) return Status::Ok();
  const std::string target = CurrentTarget();
  const bool has_dots = cpu::HasDotBf16();
  if (target == "avx512" && has_dots) return Status::Ok();
  return FailedPrecondition("prefill-dtype bfloat16 needs a processor with AVX512_BF16 and the vector target avx512; " +
                            (has_dots ? "the target is " + target + " (DELTAFOLD_TARGET)"
                                      : "this processor does not have AVX512_BF16 (its target is " + target + ")") +
                            "; leave it out or give float32");
}

}  // namespace df::kernels
