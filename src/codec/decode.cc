#include "codec/decode.h"

#include <algorithm>
#include <cmath>

#include "codec/row_ops.h"

namespace df {

namespace {

// DoRA: the row keeps its direction. A row without length becomes NaN, as where it is served it is refused.
void ScaleTo(float length, std::span<float> row) {
  double squares = 0;
  for (const float value : row) squares += double{value} * value;
  const auto gain = static_cast<float>(length / std::sqrt(squares));
  for (float& value : row) value *= gain;
}

}  // namespace

RowDecoder::RowDecoder(const TensorView& base, const LinearDelta& delta) : base_(base), delta_(delta) {
  for (const SignPlane& plane : delta.planes) {
    std::vector<float>& scale = col_scales_.emplace_back(plane.col_scale ? delta.d_in : 0);
    if (plane.col_scale) ReadFloats(*plane.col_scale, 0, scale);
  }
  for (const LowRank& pair : delta.low_rank) {
    Mat<float>& a = a_.emplace_back(MatrixRows(pair.a), delta.d_in);
    ReadFloats(pair.a, 0, {a.Row(0), a.rows() * a.cols()});
  }
}

bool RowDecoder::ReadReplaced(size_t row, std::span<float> out) const {
  if (!delta_.rows) return false;
  const std::vector<int32_t>& index = delta_.rows->index;
  const auto found = std::lower_bound(index.begin(), index.end(), static_cast<int32_t>(row));
  if (found == index.end() || *found != static_cast<int32_t>(row)) return false;
  row_ops::ReadRow(delta_.rows->values, static_cast<size_t>(found - index.begin()), out);
  return true;
}

void RowDecoder::AddPlanes(size_t row, std::span<float> sum) const {
  for (size_t p = 0; p < delta_.planes.size(); ++p) {
    const SignPlane& plane = delta_.planes[p];
    const uint8_t* bits = plane.bits.data() + row * SignRowBytes(delta_.d_in);
    const float scale = plane.row_scale ? plane.scale * FloatAt(*plane.row_scale, row) : plane.scale;
    if (plane.col_scale) {
      row_ops::SubtractSigns(bits, -scale, col_scales_[p], sum);
    } else {
      row_ops::SubtractSigns(bits, -scale, sum);
    }
  }
}

void RowDecoder::AddLowRanks(size_t row, std::span<float> sum) const {
  for (size_t q = 0; q < delta_.low_rank.size(); ++q) {
    const LowRank& pair = delta_.low_rank[q];
    for (size_t k = 0; k < a_[q].rows(); ++k) {
      const float factor = pair.scale * FloatAt(pair.b, row * a_[q].rows() + k);
      const float* a = a_[q].Row(k);
      for (size_t j = 0; j < sum.size(); ++j) sum[j] += factor * a[j];
    }
  }
}

void RowDecoder::AddByteRow(size_t row, std::span<float> sum) const {
  if (!delta_.byte_rows) return;
  const std::vector<int32_t>& index = delta_.byte_rows->index;
  const auto found = std::lower_bound(index.begin(), index.end(), static_cast<int32_t>(row));
  if (found == index.end() || *found != static_cast<int32_t>(row)) return;
  const auto place = static_cast<size_t>(found - index.begin());
  const float step = FloatAt(delta_.byte_rows->step, place);
  const auto* q = reinterpret_cast<const int8_t*>(delta_.byte_rows->values.bytes.data()) + place * sum.size();
  for (size_t j = 0; j < sum.size(); ++j) sum[j] += step * static_cast<float>(q[j]);
}

void RowDecoder::Decode(size_t row, std::span<float> out) const {
  const bool is_coded = !delta_.planes.empty() || !delta_.low_rank.empty() || delta_.byte_rows;
  std::vector<float> sum(is_coded ? out.size() : 0);
  if (!ReadReplaced(row, out)) {
    const TensorView& start = delta_.raw ? *delta_.raw : base_;
    std::fill(out.begin(), out.end(), 0.0F);
    if (row < MatrixRows(start)) row_ops::ReadRow(start, row, out);
    AddPlanes(row, sum);
    AddByteRow(row, sum);
  }
  AddLowRanks(row, sum);
  for (size_t j = 0; j < sum.size(); ++j) out[j] += sum[j];
  if (delta_.magnitude) ScaleTo(FloatAt(*delta_.magnitude, row), out);
}

}  // namespace df
