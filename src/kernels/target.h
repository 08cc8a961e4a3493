// kernels/: the numeric primitives of a decoder step, on packed weights. Input: views and a KernelContext; output:
// views. Called by model/ (and codec/ for encoding). Each header (linear, attention, norm, rope, embed, activation,
// sample) states one primitive; ref/ is its scalar oracle, cpu/ the Highway implementation, chosen at run time by the
// target below. Kernels are pure: no lock, log or branch on model kind; scratch comes from the KernelContext.
//
// Order of summation: every output row of every kernel is a function of that row's inputs, its phase and the weight
// alone, never of how many rows, segments or threads there are. That makes logits bit-identical alone and in any batch.
// The one exception is Linear without KernelOptions::batch_invariant.
#ifndef DELTAFOLD_KERNELS_TARGET_H_
#define DELTAFOLD_KERNELS_TARGET_H_

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace df::kernels {

// Names of the targets that this machine can run, best first, of "avx512", "avx2", "sse4" (x86-64), "neon" (arm64), and
// always last "scalar" (the oracle in ref/).
std::vector<std::string> AvailableTargets();

// Forces all kernels of the process to `name`: one of AvailableTargets(), or "auto" for the first of them. Highway's
// own spellings ("AVX3", "AVX2", ...) are accepted too. The only error is kInvalidArgument listing the available names.
// Not to be called while a kernel runs.
Status SetTarget(std::string_view name);

// Takes the target from the environment variable DELTAFOLD_TARGET (unset or empty = "auto"); errors as SetTarget.
// Programs call it at start so that a wrong value is reported; without that call the first kernel does the same, and a
// wrong value counts as "auto".
Status SetTargetFromEnvironment();
std::string CurrentTarget();

// Whether every primitive is to answer through ref/. How a primitive is routed and a Highway file written:
// cpu/simd-inl.h.
bool IsScalarTarget();

}  // namespace df::kernels

#endif  // DELTAFOLD_KERNELS_TARGET_H_
