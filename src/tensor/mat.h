// Row-major matrices in memory. MatView never owns; Mat owns, is 64-byte aligned, move-only and copied by Clone()
// alone.
#ifndef DELTAFOLD_TENSOR_MAT_H_
#define DELTAFOLD_TENSOR_MAT_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>

#include "base/check.h"

namespace df {

// 64: a cache line and the widest vector.
inline constexpr size_t kAlignment = 64;

// Zeroed memory aligned to kAlignment; anonymous huge pages from 2 MiB on where the system offers them. n_bytes may be
// 0.
void* AllocateAligned(size_t n_bytes);
void FreeAligned(void* memory, size_t n_bytes);

// One piece of zeroed memory that many buffers are carved from: huge pages, where each alone is too small for one, and
// given back in one call. Must outlive them. Thread-compatible.
class Arena {
 public:
  explicit Arena(size_t n_bytes) : memory_(static_cast<uint8_t*>(AllocateAligned(n_bytes))), n_bytes_(n_bytes) {}
  ~Arena() { FreeAligned(memory_, n_bytes_); }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // `n_bytes` more, aligned to kAlignment; null when it has not that much left.
  void* TryTake(size_t n_bytes) {
    const size_t rounded = (n_bytes + kAlignment - 1) / kAlignment * kAlignment;
    if (n_bytes == 0 || rounded > n_bytes_ - taken_bytes_) return nullptr;
    return memory_ + std::exchange(taken_bytes_, taken_bytes_ + rounded);
  }
  size_t taken_bytes() const { return taken_bytes_; }

 private:
  uint8_t* memory_ = nullptr;
  size_t n_bytes_ = 0, taken_bytes_ = 0;
};

// Owner of `size` zero-initialised elements, aligned. Move-only.
template <typename T>
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t size) : data_(static_cast<T*>(AllocateAligned(size * sizeof(T)))), size_(size) {}
  // Out of `arena`, which must outlive it, while that has room; null = memory of its own.
  Buffer(size_t size, Arena* arena) : size_(size) {
    data_ = arena == nullptr ? nullptr : static_cast<T*>(arena->TryTake(size * sizeof(T)));
    origin_ = data_ == nullptr ? Origin::kOwn : Origin::kArena;
    if (data_ == nullptr) data_ = static_cast<T*>(AllocateAligned(size * sizeof(T)));
  }
  Buffer(Buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)), origin_(other.origin_) {}
  Buffer& operator=(Buffer&& other) noexcept {
    if (this != &other) {
      Free();
      data_ = std::exchange(other.data_, nullptr);
      size_ = std::exchange(other.size_, 0);
      origin_ = other.origin_;
    }
    return *this;
  }
  ~Buffer() { Free(); }

  T* data() { return data_; }
  const T* data() const { return data_; }
  size_t size() const { return size_; }
  size_t size_bytes() const { return size_ * sizeof(T); }
  // Memory held for this buffer alone: its own, or its part of an arena.
  size_t owned_bytes() const { return origin_ == Origin::kBorrowed ? 0 : size_bytes(); }
  bool empty() const { return size_ == 0; }
  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }
  std::span<T> span() { return {data_, size_}; }
  std::span<const T> span() const { return {data_, size_}; }

  Buffer Clone() const {
    Buffer copy(size_);
    if (size_ > 0) std::memcpy(copy.data_, data_, size_bytes());
    return copy;
  }
  // The same elements, owned by this buffer still: it must outlive what is returned. For reading only.
  Buffer Borrow() const {
    Buffer borrowed;
    borrowed.data_ = data_;
    borrowed.size_ = size_;
    borrowed.origin_ = Origin::kBorrowed;
    return borrowed;
  }

 private:
  enum class Origin : uint8_t { kOwn, kArena, kBorrowed };

  void Free() {
    if (origin_ == Origin::kOwn) FreeAligned(data_, size_bytes());
  }

  T* data_ = nullptr;
  size_t size_ = 0;
  Origin origin_ = Origin::kOwn;
};

template <typename T>
struct MatView {
  T* data = nullptr;
  size_t rows = 0;
  size_t cols = 0;
  size_t stride = 0;  // elements from one row to the next, >= cols

  MatView() = default;
  MatView(T* d, size_t r, size_t c, size_t s) : data(d), rows(r), cols(c), stride(s) {}
  MatView(T* d, size_t r, size_t c) : MatView(d, r, c, c) {}

  T* Row(size_t r) const { return data + r * stride; }
  std::span<T> RowSpan(size_t r) const { return {Row(r), cols}; }
  MatView Rows(size_t begin, size_t end) const { return {data + begin * stride, end - begin, cols, stride}; }
  operator MatView<const T>() const { return {data, rows, cols, stride}; }  // NOLINT(google-explicit-constructor)
};

template <typename T>
class Mat {
 public:
  Mat() = default;
  Mat(size_t rows, size_t cols) : buffer_(rows * cols), rows_(rows), cols_(cols) {}

  size_t rows() const { return rows_; }
  size_t cols() const { return cols_; }
  size_t size_bytes() const { return buffer_.size_bytes(); }
  T* Row(size_t r) { return buffer_.data() + r * cols_; }
  const T* Row(size_t r) const { return buffer_.data() + r * cols_; }
  MatView<T> view() { return {buffer_.data(), rows_, cols_}; }
  MatView<const T> view() const { return {buffer_.data(), rows_, cols_}; }
  MatView<T> Rows(size_t begin, size_t end) { return view().Rows(begin, end); }

 private:
  Buffer<T> buffer_;
  size_t rows_ = 0;
  size_t cols_ = 0;
};

}  // namespace df

#endif  // DELTAFOLD_TENSOR_MAT_H_
