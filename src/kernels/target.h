// kernels/: the numeric primitives of a decoder step, on packed weights. Input: views and a KernelContext; output: views.
// Called by model/ (and codec/ for encoding). Each header (linear, attention, norm, rope, embed, activation, sample) states
// one primitive; ref/ is its scalar oracle, cpu/ the Highway implementation, chosen at run time by the target below.
// Kernels are pure: no lock, log or branch on model kind; scratch comes from the KernelContext.
//
// Order of summation: every output row of every kernel is a function of that row's inputs, its phase and the weight
// alone, never of how many rows, segments or threads there are. That makes logits bit-identical alone and in any batch.
#ifndef DELTAFOLD_KERNELS_TARGET_H_
#define DELTAFOLD_KERNELS_TARGET_H_

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace df::kernels {

// Names of the targets that this machine can run, best first: for example "avx512_dl", "avx512", "avx2", "sse4",
// "ssse3", and always last "scalar" (the oracle in ref/).
std::vector<std::string> AvailableTargets();

// Forces all kernels of the process to `name` (one of AvailableTargets(), or "auto"). The only error is
// kInvalidArgument listing the available names. Not to be called while a kernel runs.
Status SetTarget(std::string_view name);

// What SetTarget chose, or else the environment variable DELTAFOLD_TARGET, or else the best one. A wrong value in the
// environment is reported by SetTargetFromEnvironment, which programs call at start.
Status SetTargetFromEnvironment();
std::string CurrentTarget();

}  // namespace df::kernels

#endif  // DELTAFOLD_KERNELS_TARGET_H_
