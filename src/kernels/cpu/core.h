// What differs between cores that have the same vector instructions. Each is a measured choice (docs/kernels.md).
#ifndef DELTAFOLD_KERNELS_CPU_CORE_H_
#define DELTAFOLD_KERNELS_CPU_CORE_H_

namespace df::kernels::cpu {

struct CoreHabits {
  // Its own prefetcher brings weights faster than software can ask for them: decode_turns-inl.h.
  bool prefetches_streams = false;
  // 64-byte vectors are worked on in halves: byte look-ups of 32 bytes run faster, since they load tables faster.
  bool halves_vectors = false;
};

// Of the processor that this process runs on, or as set.
const CoreHabits& ThisCore();

// For tests of what other cores run: everything computes alike on any core. Not while a kernel runs.
void SetThisCore(const CoreHabits& habits);

}  // namespace df::kernels::cpu

#endif  // DELTAFOLD_KERNELS_CPU_CORE_H_
