// The limits of this machine for one number of threads, measured before and after a run.
#ifndef DELTAFOLD_TOOLS_MACHINE_H_
#define DELTAFOLD_TOOLS_MACHINE_H_

#include <cstddef>
#include <string>

#include "base/json_fwd.h"
#include "tensor/kernel_context.h"

namespace df::tools {

struct Machine {
  size_t n_threads = 0;
  double read_bytes_per_second = 0;      // in sequence, huge pages
  double copy_bytes_per_second = 0;      // memcpy between huge pages: bytes copied, each is read and written
  double flops_per_second = 0;           // f32 multiply-add of the current vector target
  double shuffle_bytes_per_second = 0;   // 16-entry byte look-ups of the current vector target
  double dot_ops_per_second = 0;         // vpdpbusd; 0 where there is none
  double dot_bf16_flops_per_second = 0;  // vdpbf16ps; 0 where there is none
};

// Best of a few rounds of each in CPU time (cpu_timer.h); about a second and 1 GB for its duration.
Machine MeasureMachine(KernelContext& context);

// Relative change of the multiply-add peak: of the cores' own speed.
double PeakDrift(const Machine& before, const Machine& after);
// The larger one of that and the change of read bandwidth, which neighbours on the same memory take and give back.
double Drift(const Machine& before, const Machine& after);

Json ToJson(const Machine& machine);

// Bytes of the last-level cache; 0 when the system does not say.
size_t LastLevelCacheBytes();
std::string CpuName();  // "" when the system does not say

}  // namespace df::tools

#endif  // DELTAFOLD_TOOLS_MACHINE_H_
