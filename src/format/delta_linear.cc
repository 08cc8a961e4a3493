// Stored parts of one weight -> the LinearDelta of a layer whose shape is known.
#include "format/delta_tensors.h"
#include "format/message.h"

namespace df::internal {
namespace {

std::string Describe(std::string_view weight, std::string_view suffix) {
  return "tensor " + Quoted(std::string(weight) + std::string(suffix));
}

Status CheckDim(std::string_view weight, std::string_view suffix, const TensorView& view, size_t axis,
                size_t expected) {
  if (view.shape[axis] == expected) return Status::Ok();
  return Corrupt(Describe(weight, suffix) + " has shape " + ToString(view.shape) + ", dimension " +
                 std::to_string(axis) + " must be " + std::to_string(expected));
}

// Bits beyond d_in must be zero, so that equal deltas have equal bytes and a stray bit is seen.
Status CheckPadding(std::string_view weight, const TensorView& sign, size_t d_in) {
  const size_t row_bytes = SignRowBytes(d_in);
  if (d_in % 8 == 0) return Status::Ok();
  const auto padding = static_cast<uint8_t>(0xFFU << (d_in % 8));
  for (size_t last = row_bytes - 1; last < sign.bytes.size(); last += row_bytes) {
    if ((sign.bytes[last] & padding) == 0) continue;
    return Corrupt(Describe(weight, ".sign") + " has padding bits set in row " + std::to_string(last / row_bytes));
  }
  return Status::Ok();
}

TensorView RowOf(const TensorView& matrix, size_t row) {
  const size_t width = matrix.shape[1];
  const size_t row_bytes = width * DTypeBytes(matrix.dtype);
  return {matrix.dtype, Shape{width}, matrix.bytes.subspan(row * row_bytes, row_bytes)};
}

Status AddPlanes(std::string_view weight, const WeightParts& parts, LinearDelta& delta) {
  const TensorView& sign = *parts.sign;
  DF_RETURN_IF_ERROR(CheckDim(weight, ".sign", sign, 1, delta.d_out));
  DF_RETURN_IF_ERROR(CheckDim(weight, ".sign", sign, 2, SignRowBytes(delta.d_in)));
  if (parts.scale_col != nullptr) DF_RETURN_IF_ERROR(CheckDim(weight, ".scale_col", *parts.scale_col, 1, delta.d_in));
  DF_RETURN_IF_ERROR(CheckPadding(weight, sign, delta.d_in));
  const size_t plane_bytes = delta.d_out * SignRowBytes(delta.d_in);
  for (size_t p = 0; p < sign.shape[0]; ++p) {
    SignPlane plane;
    plane.bits = sign.bytes.subspan(p * plane_bytes, plane_bytes);
    if (parts.scale != nullptr) plane.scale = FloatAt(*parts.scale, p);
    if (parts.scale_row != nullptr) plane.row_scale = RowOf(*parts.scale_row, p);
    if (parts.scale_col != nullptr) plane.col_scale = RowOf(*parts.scale_col, p);
    delta.planes.push_back(plane);
  }
  return Status::Ok();
}

Result<std::vector<int32_t>> ReadIndex(std::string_view weight, const WeightParts& parts, size_t d_out) {
  std::vector<int32_t> index(parts.rows_index->elements());
  for (size_t i = 0; i < index.size(); ++i) {
    index[i] = LoadUnaligned<int32_t>(parts.rows_index->bytes.data() + i * sizeof(int32_t));
  }
  if (!index.empty() && static_cast<size_t>(index.back()) >= d_out) {
    return Corrupt(Describe(weight, ".rows_index") + " names row " + std::to_string(index.back()) +
                   ", the weight has " + std::to_string(d_out));
  }
  return index;
}

Status AddRows(std::string_view weight, const WeightParts& parts, LinearDelta& delta) {
  DF_RETURN_IF_ERROR(CheckDim(weight, ".rows", *parts.rows, 1, delta.d_in));
  DF_ASSIGN_OR_RETURN(std::vector<int32_t> index, ReadIndex(weight, parts, delta.d_out));
  delta.rows = ReplacedRows{.index = std::move(index), .values = *parts.rows};
  return Status::Ok();
}

Status AddByteRows(std::string_view weight, const WeightParts& parts, LinearDelta& delta) {
  DF_RETURN_IF_ERROR(CheckDim(weight, ".rows_q", *parts.rows_q, 1, delta.d_in));
  DF_ASSIGN_OR_RETURN(std::vector<int32_t> index, ReadIndex(weight, parts, delta.d_out));
  delta.byte_rows = ByteRows{.index = std::move(index), .values = *parts.rows_q, .step = *parts.rows_step};
  return Status::Ok();
}

// Rows beyond the base's have no value but a stored one.
Status CheckNewRows(std::string_view weight, size_t base_rows, const LinearDelta& delta) {
  if (delta.d_out <= base_rows || delta.raw) return Status::Ok();
  size_t missing = base_rows;
  const std::vector<int32_t> none;
  for (const int32_t row : delta.rows ? delta.rows->index : delta.byte_rows ? delta.byte_rows->index : none) {
    if (static_cast<size_t>(row) == missing) ++missing;
  }
  if (missing == delta.d_out) return Status::Ok();
  return Corrupt("weight " + Quoted(weight) + " grows from " + std::to_string(base_rows) + " to " +
                 std::to_string(delta.d_out) + " rows, row " + std::to_string(missing) + " is not stored");
}

}  // namespace

Result<LinearDelta> LinearOf(const TensorMap& tensors, std::string_view weight, ShapeOfWeight base, size_t d_out) {
  const WeightParts parts = PartsOf(tensors, weight);
  LinearDelta delta;
  delta.d_out = d_out;
  delta.d_in = base.d_in;
  if (parts.raw != nullptr) {
    if (parts.raw->shape != Shape{d_out, base.d_in}) {
      return Corrupt(Describe(weight, "") + " has shape " + ToString(parts.raw->shape) + ", expected " +
                     ToString(Shape{d_out, base.d_in}));
    }
    delta.raw = *parts.raw;
  }
  if (parts.sign != nullptr) DF_RETURN_IF_ERROR(AddPlanes(weight, parts, delta));
  if (parts.lora_a != nullptr) {
    DF_RETURN_IF_ERROR(CheckDim(weight, ".lora_A", *parts.lora_a, 1, base.d_in));
    DF_RETURN_IF_ERROR(CheckDim(weight, ".lora_B", *parts.lora_b, 0, d_out));
    delta.low_rank.push_back({.a = *parts.lora_a, .b = *parts.lora_b});
  }
  if (parts.rows != nullptr) DF_RETURN_IF_ERROR(AddRows(weight, parts, delta));
  if (parts.rows_q != nullptr) DF_RETURN_IF_ERROR(AddByteRows(weight, parts, delta));
  DF_RETURN_IF_ERROR(CheckNewRows(weight, base.d_out, delta));
  return delta;
}

Result<std::optional<TensorView>> VectorOf(const TensorMap& tensors, std::string_view name, size_t size) {
  const WeightParts parts = PartsOf(tensors, name);
  if (parts.sign != nullptr || parts.lora_a != nullptr || parts.rows_index != nullptr) {
    return Corrupt("weight " + Quoted(name) + " is a vector of " + std::to_string(size) +
                   " elements: it can only be replaced, not coded");
  }
  if (parts.raw == nullptr) return std::optional<TensorView>();
  if (parts.raw->shape != Shape{size}) {
    return Corrupt(Describe(name, "") + " has shape " + ToString(parts.raw->shape) + ", expected " +
                   ToString(Shape{size}));
  }
  return std::optional<TensorView>(*parts.raw);
}

}  // namespace df::internal
