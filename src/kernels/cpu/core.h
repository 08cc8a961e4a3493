// What differs between cores that have the same vector instructions. Each is a measured choice (docs/kernels.md).
#ifndef DELTAFOLD_KERNELS_CPU_CORE_H_
#define DELTAFOLD_KERNELS_CPU_CORE_H_

#include <cstddef>
#include <cstdint>

namespace df::kernels::cpu {

struct CoreHabits {
  // Rows from which on base and signs take turns (decode_turns-inl.h) instead of being woven: 1 where the core's own
  // prefetcher brings weights faster than software can ask for them.
  size_t min_turn_rows = SIZE_MAX;
  // 64-byte vectors are worked on in halves: byte look-ups of 32 bytes run faster, since they load tables faster.
  bool halves_vectors = false;
};

// Of the processor that this process runs on, or as set.
const CoreHabits& ThisCore();

// For tests of what other cores run: everything computes alike on any core. Not while a kernel runs.
void SetThisCore(const CoreHabits& habits);

}  // namespace df::kernels::cpu

#endif  // DELTAFOLD_KERNELS_CPU_CORE_H_
