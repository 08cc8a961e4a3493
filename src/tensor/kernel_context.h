// What every kernel call is given: threads and scratch. One per engine; never shared between threads.
#ifndef DELTAFOLD_TENSOR_KERNEL_CONTEXT_H_
#define DELTAFOLD_TENSOR_KERNEL_CONTEXT_H_

#include <array>
#include <cstddef>

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

struct KernelContext {
  explicit KernelContext(size_t n_threads) : pool(n_threads) {}

  ThreadPool pool;
  Scratch scratch;  // slots are allotted in kernels/scratch_slots.h
};

}  // namespace df

#endif  // DELTAFOLD_TENSOR_KERNEL_CONTEXT_H_
