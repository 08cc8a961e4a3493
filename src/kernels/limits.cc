#include "kernels/limits.h"

#include <atomic>

#include "kernels/cpu/limits.h"
#include "kernels/target.h"

namespace df::kernels {
namespace {

// These have no scalar form, so nothing asks which target is meant before Highway would choose one by itself.
void ChooseTarget() { (void)IsScalarTarget(); }

}  // namespace

uint64_t ReadMemory(KernelContext& context, Bytes memory) {
  ChooseTarget();
  std::atomic<uint64_t> digest = 0;
  context.pool.ParallelFor(memory.size(), 4096, [&](size_t begin, size_t end, size_t) {
    digest.fetch_xor(cpu::ReadMemory(memory.subspan(begin, end - begin)), std::memory_order_relaxed);
  });
  return digest;
}

double MultiplyAdd(KernelContext& context, size_t n_steps) {
  ChooseTarget();
  const size_t n_threads = context.pool.n_threads();
  double flops = 0;
  context.pool.ParallelFor(n_threads, 1, [&](size_t, size_t, size_t thread) {
    const double done = cpu::MultiplyAdd(n_steps);
    if (thread == 0) flops = done * static_cast<double>(n_threads);
  });
  return flops;
}

}  // namespace df::kernels
