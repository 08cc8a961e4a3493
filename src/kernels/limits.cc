#include "kernels/limits.h"

#include <atomic>

#include "kernels/cpu/dot_bf16.h"
#include "kernels/cpu/dot_bytes.h"
#include "kernels/cpu/limits.h"
#include "kernels/target.h"

namespace df::kernels {
namespace {

// These have no scalar form, so nothing asks which target is meant before Highway would choose one by itself.
void ChooseTarget() { (void)IsScalarTarget(); }

// Every thread does all of `body`; returns the work of all.
double OnEveryThread(KernelContext& context, double (*body)(size_t n_steps), size_t n_steps) {
  ChooseTarget();
  const size_t n_threads = context.pool.n_threads();
  std::atomic<double> work = 0;
  context.pool.ParallelFor(n_threads, 1, [&](size_t begin, size_t end, size_t) {
    for (size_t i = begin; i < end; ++i) work.fetch_add(body(n_steps), std::memory_order_relaxed);
  });
  return work;
}

}  // namespace

uint64_t ReadMemory(KernelContext& context, Bytes memory) {
  ChooseTarget();
  std::atomic<uint64_t> digest = 0;
  context.pool.ParallelFor(memory.size(), 4096, [&](size_t begin, size_t end, size_t) {
    digest.fetch_xor(cpu::ReadMemory(memory.subspan(begin, end - begin)), std::memory_order_relaxed);
  });
  return digest;
}

double MultiplyAdd(KernelContext& context, size_t n_steps) { return OnEveryThread(context, cpu::MultiplyAdd, n_steps); }
double ShuffleBytes(KernelContext& context, size_t n_steps) {
  return OnEveryThread(context, cpu::ShuffleBytes, n_steps);
}
double DotBytes(KernelContext& context, size_t n_steps) { return OnEveryThread(context, cpu::DotBytes, n_steps); }
double DotBf16(KernelContext& context, size_t n_steps) { return OnEveryThread(context, cpu::DotBf16, n_steps); }

}  // namespace df::kernels
