#include "cli/kernel_arguments.h"

#include "kernels/prefill_dtype.h"

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
  AddPrefillDtypeOption(command, options).Env("DELTAFOLD_PREFILL_DTYPE");
}

OptionRef AddPrefillDtypeOption(const Command& command, KernelOptions& options) {
  return command.Choice<PrefillDtype>(
      "--prefill-dtype", {{"float32", PrefillDtype::kF32}, {"bfloat16", PrefillDtype::kBf16}}, options.prefill_dtype,
      "Prompts are multiplied in float32, or in bfloat16: activations and folded weights are rounded to 8 bits\n"
      "(each by up to 1/256), sums stay f32; about twice as fast, where the processor has AVX512_BF16 [float32]");
}

Status CheckKernelOptions(const KernelOptions& options) { return kernels::CheckPrefillDtype(options.prefill_dtype); }

void AddWeightsOption(const Command& command, WeightMemory& memory) {
  command
      .Choice<WeightMemory>("--weights", {{"ram", WeightMemory::kRam}, {"mmap", WeightMemory::kMapped}}, memory,
                            "The base's matrices: ram (repacked once into huge pages: fastest) or mmap (left in the\n"
                            "mapped files: nothing is copied, processes share them, but decoding is slower; keep the\n"
                            "files as they are)")
      .Env("DELTAFOLD_WEIGHTS");
}

}  // namespace df::cli
