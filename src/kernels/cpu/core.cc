#include "kernels/cpu/core.h"

#include "hwy/base.h"

namespace df::kernels::cpu {
namespace {

// Measured on a Zen 4 and, without AVX-512, on a Zen 3; other cores of AMD are taken to be alike, unmeasured.
CoreHabits Find() {
#if HWY_ARCH_X86
  __builtin_cpu_init();
  if (__builtin_cpu_is("amd") != 0) {
    if (__builtin_cpu_supports("avx512f") != 0) return {.min_turn_rows = 1, .halves_vectors = true};
    return {.min_turn_rows = 3};
  }
#endif
  return {};
}

CoreHabits& Habits() {
  static CoreHabits habits = Find();
  return habits;
}

}  // namespace

const CoreHabits& ThisCore() { return Habits(); }

void SetThisCore(const CoreHabits& habits) { Habits() = habits; }

}  // namespace df::kernels::cpu
