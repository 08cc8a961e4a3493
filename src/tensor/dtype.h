// Element types of stored tensors, by their safetensors names.
#ifndef DELTAFOLD_TENSOR_DTYPE_H_
#define DELTAFOLD_TENSOR_DTYPE_H_

#include <cstddef>
#include <optional>
#include <string_view>

namespace df {

enum class DType { kBool, kU8, kI8, kF8E4M3, kF8E5M2, kI16, kU16, kF16, kBf16, kI32, kU32, kF32, kI64, kU64, kF64 };

size_t DTypeBytes(DType dtype);
std::string_view DTypeName(DType dtype);  // "BF16", "F32", ...
std::optional<DType> DTypeFromName(std::string_view name);
constexpr bool IsWeightDType(DType dtype) {  // the element types that a served weight may have
  return dtype == DType::kF32 || dtype == DType::kBf16 || dtype == DType::kF16;
}

}  // namespace df

#endif  // DELTAFOLD_TENSOR_DTYPE_H_
