// How fast this machine reads memory right now, for what is compared with it in the same round.
#ifndef DELTAFOLD_TOOLS_READ_GAUGE_H_
#define DELTAFOLD_TOOLS_READ_GAUGE_H_

#include <cstddef>
#include <cstdint>

#include "tensor/kernel_context.h"
#include "tensor/mat.h"

namespace df::tools {

// Threads and memory of its own: 256 MB, or more than the last-level cache. Thread-compatible.
class ReadGauge {
 public:
  explicit ReadGauge(size_t n_threads);

  // Wall time of a byte, all threads reading in sequence: the median of some passes, 20 to 50 ms together on two cores.
  double SecondsPerByte();

 private:
  KernelContext context_;
  Buffer<uint8_t> memory_;
};

}  // namespace df::tools

#endif  // DELTAFOLD_TOOLS_READ_GAUGE_H_
