// A stored tensor seen in place: dtype, shape, little-endian row-major bytes (possibly misaligned, in a mapped file).
#ifndef DELTAFOLD_TENSOR_TENSOR_VIEW_H_
#define DELTAFOLD_TENSOR_TENSOR_VIEW_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>

#include "base/bytes.h"
#include "tensor/dtype.h"

namespace df {

// Up to 8 dimensions, by value.
class Shape {
 public:
  static constexpr size_t kMaxRank = 8;

  Shape() = default;
  Shape(std::initializer_list<size_t> dims);                           // at most kMaxRank
  static std::optional<Shape> FromSpan(std::span<const size_t> dims);  // nullopt: rank above kMaxRank

  size_t rank() const { return rank_; }
  size_t operator[](size_t i) const { return dims_[i]; }
  std::span<const size_t> dims() const { return {dims_.data(), rank_}; }
  // Product of the dimensions (1 for rank 0); nullopt on overflow.
  std::optional<size_t> TryElements() const;
  bool operator==(const Shape& other) const = default;

 private:
  std::array<size_t, kMaxRank> dims_ = {};
  size_t rank_ = 0;
};

std::string ToString(const Shape& shape);  // "[4096, 512]"

struct TensorView {
  DType dtype = DType::kF32;
  Shape shape;
  Bytes bytes;  // exactly elements() * DTypeBytes(dtype)

  size_t elements() const { return bytes.size() / DTypeBytes(dtype); }
};

// Element `i` (row-major) of a F32, BF16 or F16 tensor as f32. For single values; whole rows: ReadFloats.
float FloatAt(const TensorView& tensor, size_t i);

// Converts elements [first, first + out.size()) of a F32, BF16, F16 or F64 tensor to f32.
void ReadFloats(const TensorView& tensor, size_t first, std::span<float> out);

}  // namespace df

#endif  // DELTAFOLD_TENSOR_TENSOR_VIEW_H_
