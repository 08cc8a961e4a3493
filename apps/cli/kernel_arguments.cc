#include "cli/kernel_arguments.h"

namespace df::cli {

void AddKernelOptions(const Command& command, KernelOptions& options) {
  command
      .Choice<SignKernel>(
          "--sign-kernel", {{"auto", SignKernel::kAuto}, {"exact", SignKernel::kExact}, {"lut", SignKernel::kLookup}},
          options.sign_kernel,
          "Signs of generated tokens: exact, lut (14-bit tables: faster for several variants at once) or auto")
      .Env("DELTAFOLD_SIGN_KERNEL");
  command
      .Switch("--batch-invariant", options.batch_invariant,
              "Same bits alone and in any batch: one path for prompts, one for generated tokens")
      .Env("DELTAFOLD_BATCH_INVARIANT");
}

}  // namespace df::cli
