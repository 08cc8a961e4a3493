#include "codec/codec.h"

#include <algorithm>
#include <cmath>

namespace df {
namespace {

Status FindNonFiniteIn(const TensorView& tensor, const std::string& name, std::string_view checkpoint) {
  std::vector<float> row(MatrixCols(tensor));
  for (size_t r = 0; r < MatrixRows(tensor); ++r) {
    ReadFloats(tensor, r * row.size(), row);
    const auto bad = std::find_if(row.begin(), row.end(), [](float x) { return !std::isfinite(x); });
    if (bad == row.end()) continue;
    return Corrupt("tensor " + name + " of the " + std::string(checkpoint) + " holds " +
                   (std::isnan(*bad) ? "NaN" : "an infinity") + " at row " + std::to_string(r) + ", column " +
                   std::to_string(bad - row.begin()) + ": its delta has no scale");
  }
  return Status::Ok();
}

std::string PlanesName(const std::vector<SignPlane>& planes) {
  const SignPlane& first = planes.front();
  const std::string_view scale =
      first.row_scale ? (first.col_scale ? " rank-1" : " row") : (first.col_scale ? " column" : " scalar");
  return (planes.size() == 1 ? "sign" : std::to_string(planes.size()) + " signs") + std::string(scale);
}

uint64_t OptionalBytes(const std::optional<TensorView>& view) { return view ? view->bytes.size() : 0; }

}  // namespace

size_t MatrixRows(const TensorView& tensor) { return tensor.shape.rank() == 2 ? tensor.shape[0] : 1; }
size_t MatrixCols(const TensorView& tensor) { return tensor.shape.rank() == 2 ? tensor.shape[1] : tensor.elements(); }

EncodedWeight UnchangedWeight(size_t d_out, size_t d_in) {
  EncodedWeight weight;
  weight.delta.d_out = d_out;
  weight.delta.d_in = d_in;
  return weight;
}

void ErrorSums::Add(const ErrorSums& other) {
  difference += other.difference;
  cross += other.cross;
  error += other.error;
  max_abs_error = std::max(max_abs_error, other.max_abs_error);
}

Quality ErrorSums::ToQuality() const {
  Quality quality;
  quality.max_abs_error = max_abs_error;
  if (difference == 0) {
    if (error > 0) quality.relative_frobenius = HUGE_VAL;
    if (error > 0) quality.cosine = 0;
    return quality;
  }
  quality.relative_frobenius = std::sqrt(error / difference);
  const double inner = difference - cross;                // <D, D^>, since D^ = D - (D - D^)
  const double decoded = difference - 2 * cross + error;  // |D^|^2
  quality.cosine = decoded > 0 ? inner / std::sqrt(difference * decoded) : 0;
  return quality;
}

Quality QualityOfRows(std::span<const ErrorSums> rows, size_t n_base) {
  ErrorSums common, added;
  for (size_t row = 0; row < rows.size(); ++row) (row < n_base ? common : added).Add(rows[row]);
  Quality quality = common.ToQuality();
  if (added.error == 0) return quality;
  const Quality of_added = added.ToQuality();
  quality.relative_frobenius = std::max(quality.relative_frobenius, of_added.relative_frobenius);
  quality.cosine = std::min(quality.cosine, of_added.cosine);
  quality.max_abs_error = std::max(quality.max_abs_error, of_added.max_abs_error);
  return quality;
}

std::string CodeName(const LinearDelta& delta) {
  std::string name;
  const auto append = [&](const std::string& part) { name += (name.empty() ? "" : " + ") + part; };
  if (delta.raw) append("raw " + std::string(DTypeName(delta.raw->dtype)));
  if (!delta.planes.empty()) append(PlanesName(delta.planes));
  for (const LowRank& pair : delta.low_rank) append("rank " + std::to_string(MatrixRows(pair.a)));
  if (delta.rows) append("rows " + std::to_string(delta.rows->index.size()));
  if (delta.byte_rows) append("int8 rows " + std::to_string(delta.byte_rows->index.size()));
  if (delta.gain_row) append("gain");
  if (delta.magnitude) append("DoRA");
  if (delta.bias) append("bias");
  return name.empty() ? "same" : name;
}

uint64_t StoredBytes(const LinearDelta& delta) {
  uint64_t bytes = OptionalBytes(delta.raw) + OptionalBytes(delta.gain_row) + OptionalBytes(delta.magnitude) +
                   OptionalBytes(delta.bias);
  for (const SignPlane& plane : delta.planes) {
    const uint64_t scales = OptionalBytes(plane.row_scale) + OptionalBytes(plane.col_scale);
    bytes += plane.bits.size() + (scales > 0 ? scales : sizeof(float));
  }
  for (const LowRank& pair : delta.low_rank) bytes += pair.a.bytes.size() + pair.b.bytes.size();
  if (delta.rows) bytes += delta.rows->index.size() * sizeof(int32_t) + delta.rows->values.bytes.size();
  if (delta.byte_rows) {
    const ByteRows& rows = *delta.byte_rows;
    bytes += rows.index.size() * sizeof(int32_t) + rows.values.bytes.size() + rows.step.bytes.size();
  }
  return bytes;
}

Status FindNonFinite(const WeightPair& pair) {
  DF_RETURN_IF_ERROR(FindNonFiniteIn(pair.base, pair.name, "base"));
  DF_RETURN_IF_ERROR(FindNonFiniteIn(pair.fine_tune, pair.name, "fine-tune"));
  // Both finite, their difference is not: f32 weights of opposite sign near the largest float.
  return Corrupt("tensor " + pair.name + ": the difference of fine-tune and base overflows f32");
}

}  // namespace df
