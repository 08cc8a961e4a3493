#include "tensor/tensor_view.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/float16.h"

namespace df {

Shape::Shape(std::initializer_list<size_t> dims) : rank_(dims.size()) {
  DF_CHECK(dims.size() <= kMaxRank);
  std::copy(dims.begin(), dims.end(), dims_.begin());
}

std::optional<Shape> Shape::FromSpan(std::span<const size_t> dims) {
  if (dims.size() > kMaxRank) return std::nullopt;
  Shape shape;
  std::copy(dims.begin(), dims.end(), shape.dims_.begin());
  shape.rank_ = dims.size();
  return shape;
}

std::optional<size_t> Shape::TryElements() const {
  size_t product = 1;
  for (const size_t dim : dims()) {
    if (__builtin_mul_overflow(product, dim, &product)) return std::nullopt;
  }
  return product;
}

std::string ToString(const Shape& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.rank(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  return text + "]";
}

namespace {

template <typename T>
void Convert(const uint8_t* from, std::span<float> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    const T value = LoadUnaligned<T>(from + i * sizeof(T));
    if constexpr (std::is_same_v<T, double>) {
      out[i] = static_cast<float>(value);
    } else {
      out[i] = ToFloat(value);
    }
  }
}

}  // namespace

void ReadFloats(const TensorView& tensor, size_t first, std::span<float> out) {
  DF_CHECK(first + out.size() <= tensor.elements());
  const uint8_t* from = tensor.bytes.data() + first * DTypeBytes(tensor.dtype);
  switch (tensor.dtype) {
    case DType::kF32:
      if (!out.empty()) std::memcpy(out.data(), from, out.size_bytes());
      return;
    case DType::kBf16: return Convert<Bf16>(from, out);
    case DType::kF16: return Convert<F16>(from, out);
    case DType::kF64: return Convert<double>(from, out);
    default: DF_CHECK(false);
  }
}

float FloatAt(const TensorView& tensor, size_t i) {
  float value = 0;
  ReadFloats(tensor, i, {&value, 1});
  return value;
}

}  // namespace df
