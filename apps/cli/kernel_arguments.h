// Flags about how kernels compute and where weights lie: the same words wherever a command runs a model.
#ifndef DELTAFOLD_CLI_KERNEL_ARGUMENTS_H_
#define DELTAFOLD_CLI_KERNEL_ARGUMENTS_H_

#include "base/status.h"
#include "cli/flags.h"
#include "model/weights.h"
#include "tensor/kernel_context.h"

namespace df::cli {

// Programs choose paths by cost unless told otherwise.
inline constexpr KernelOptions kDefaultKernelOptions = {.batch_invariant = false};

void AddKernelOptions(const Command& command, KernelOptions& options);
OptionRef AddPrefillDtypeOption(const Command& command, KernelOptions& options);  // one of those above
// Whether this process can do what they ask for; to be called before a model is loaded. Errors: CheckPrefillDtype's.
Status CheckKernelOptions(const KernelOptions& options);
void AddWeightsOption(const Command& command, WeightMemory& memory);

}  // namespace df::cli

#endif  // DELTAFOLD_CLI_KERNEL_ARGUMENTS_H_
