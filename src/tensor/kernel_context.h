// What every kernel call is given: threads and scratch. One per engine; never shared between threads.
#ifndef DELTAFOLD_TENSOR_KERNEL_CONTEXT_H_
#define DELTAFOLD_TENSOR_KERNEL_CONTEXT_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/thread_pool.h"
#include "tensor/mat.h"

namespace df {

// Scratch memory that grows to its high-water mark and is then reused: no allocation per token.
class Scratch {
 public:
  // At least `size` elements, aligned, content undefined, valid until the next Get of the same slot.
  template <typename T>
  T* Get(size_t slot, size_t size) {
    Buffer<unsigned char>& buffer = buffers_[slot];
    if (buffer.size() < size * sizeof(T)) buffer = Buffer<unsigned char>(size * sizeof(T) * 5 / 4);
    return reinterpret_cast<T*>(buffer.data());
  }
  size_t bytes() const {
    size_t sum = 0;
    for (const auto& buffer : buffers_) sum += buffer.size();
    return sum;
  }

  static constexpr size_t kSlots = 16;

 private:
  std::array<Buffer<unsigned char>, kSlots> buffers_;
};

// How decode rows are multiplied by a variant's signs: exactly, or by 14-bit tables, whose error is about 4e-4 of the
// variant's own part (kernels/linear.h has the bounds).
enum class SignKernel : uint8_t { kAuto, kExact, kLookup };

// What prefill's rows and weights are multiplied in: f32, or pairs of bf16 added up in f32, at about twice the rate
// where the processor has AVX512_BF16 (kernels/linear.h has the bound, kernels/prefill_dtype.h says whether it has).
enum class PrefillDtype : uint8_t { kF32, kBf16 };

struct KernelOptions {
  SignKernel sign_kernel = SignKernel::kAuto;
  PrefillDtype prefill_dtype = PrefillDtype::kF32;
  // Fixes one path a phase and weight: bits of a row do not depend on the rows beside it. Without it a call may choose
  // by cost from what it is given: programs ask for that, code that compares answers does not.
  bool batch_invariant = true;
};

struct KernelContext {
  explicit KernelContext(size_t n_threads, const KernelOptions& kernel_options = {})
      : pool(n_threads), options(kernel_options), readers{.nodes = pool.nodes(), .n_threads = n_threads} {}

  ThreadPool pool;
  Scratch scratch;  // slots are allotted in kernels/scratch_slots.h
  KernelOptions options;
  // Who will multiply by what is packed here, and by that where its pages should lie: this context's own threads, or
  // those of another that it packs for.
  NumaReaders readers;
};

}  // namespace df

#endif  // DELTAFOLD_TENSOR_KERNEL_CONTEXT_H_
