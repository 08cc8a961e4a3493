// Which of KernelOptions::prefill_dtype this process can compute.
#ifndef DELTAFOLD_KERNELS_PREFILL_DTYPE_H_
#define DELTAFOLD_KERNELS_PREFILL_DTYPE_H_

#include <string_view>

#include "base/status.h"
#include "tensor/kernel_context.h"

namespace df::kernels {

// The only error is kFailedPrecondition: bf16 takes the vector target avx512 on a processor with AVX512_BF16 (or the
// scalar target, the oracle); the message says what is there instead. Programs ask before they load a model: Linear
// takes it as a bug.
Status CheckPrefillDtype(PrefillDtype dtype);

// As options and reports spell it: "float32" or "bfloat16".
constexpr std::string_view PrefillDtypeName(PrefillDtype dtype) {
  return dtype == PrefillDtype::kBf16 ? "bfloat16" : "float32";
}

}  // namespace df::kernels

#endif  // DELTAFOLD_KERNELS_PREFILL_DTYPE_H_
