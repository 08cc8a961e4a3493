#include "codec/residual.h"

#include <algorithm>

#include "codec/row_ops.h"
#include "linalg/products.h"

namespace df {
namespace {

// Rows that a product with low-rank factors takes at once; without factors the rows stay in the inner cache.
constexpr size_t kProductRows = 32;

std::span<const float> ScaleValues(const TensorView& view) {
  return {reinterpret_cast<const float*>(view.bytes.data()), view.elements()};
}

// Where `row` stands in the increasing list, or its size.
size_t PlaceOf(const std::vector<int32_t>& index, size_t row) {
  const auto found = std::ranges::lower_bound(index, static_cast<int32_t>(row));
  const bool listed = found != index.end() && *found == static_cast<int32_t>(row);
  return listed ? static_cast<size_t>(found - index.begin()) : index.size();
}

}  // namespace

void SubtractPlanes(const std::vector<SignPlane>& planes, size_t row, std::span<float> r) {
  for (const SignPlane& plane : planes) {
    const uint8_t* bits = plane.bits.data() + row * SignRowBytes(r.size());
    const float scale = plane.row_scale ? ScaleValues(*plane.row_scale)[row] : plane.scale;
    if (plane.col_scale) {
      row_ops::SubtractSigns(bits, scale, ScaleValues(*plane.col_scale), r);
    } else {
      row_ops::SubtractSigns(bits, scale, r);
    }
  }
}

Residual::Residual(const WeightPair& pair, const LinearDelta& delta)
    : pair_(pair), delta_(delta), planes_(delta.planes) {
  for (SignPlane& plane : planes_) {
    for (std::optional<TensorView>* scale : {&plane.row_scale, &plane.col_scale}) {
      if (!*scale || (*scale)->dtype == DType::kF32) continue;
      Buffer<float>& values = scales_.emplace_back((*scale)->elements());
      ReadFloats(**scale, 0, values.span());
      *scale = TensorView{DType::kF32, Shape{values.size()}, AsBytes(std::span<const float>(values.span()))};
    }
  }
  for (const LowRank& part : delta.low_rank) {
    const size_t rank = MatrixRows(part.a);
    Mat<float>& a = a_.emplace_back(rank, delta.d_in);
    Mat<float>& b = b_.emplace_back(delta.d_out, rank);
    ReadFloats(part.a, 0, {a.Row(0), rank * delta.d_in});
    ReadFloats(part.b, 0, {b.Row(0), rank * delta.d_out});
    for (size_t i = 0; i < rank * delta.d_out; ++i) b.Row(0)[i] *= part.scale;
  }
}

void Residual::ReadDifference(size_t row, std::span<float> d) const {
  if (row < MatrixRows(pair_.base)) {
    row_ops::Difference(pair_, row, d);
  } else {
    row_ops::ReadRow(pair_.fine_tune, row, d);
  }
}

// All but the low-rank parts.
void Residual::ReadRow(size_t row, std::span<const float> d, std::span<float> r) const {
  if (delta_.raw || (delta_.rows && PlaceOf(delta_.rows->index, row) < delta_.rows->index.size())) {
    std::ranges::fill(r, 0.0F);
    return;
  }
  std::ranges::copy(d, r.begin());
  SubtractPlanes(planes_, row, r);
  if (!delta_.byte_rows) return;
  const ByteRows& rows = *delta_.byte_rows;
  const size_t place = PlaceOf(rows.index, row);
  if (place == rows.index.size()) return;
  const float step = FloatAt(rows.step, place);
  const auto* values = reinterpret_cast<const int8_t*>(rows.values.bytes.data()) + place * r.size();
  for (size_t j = 0; j < r.size(); ++j) r[j] -= step * static_cast<float>(values[j]);
}

void Residual::Read(size_t first, MatView<float> d, MatView<float> r) const {
  for (size_t i = 0; i < r.rows; ++i) {
    ReadDifference(first + i, d.RowSpan(i));
    ReadRow(first + i, d.RowSpan(i), r.RowSpan(i));
  }
  for (size_t q = 0; q < a_.size(); ++q) {
    linalg::SubtractProduct(b_[q].view().Rows(first, first + r.rows), a_[q].view(), r);
  }
}

linalg::RowSource Residual::Source() const {
  return {rows(), cols(), [this](size_t first, MatView<float> out, size_t) { Read(first, out, out); }};
}

Quality MeasureQuality(ThreadPool& pool, const WeightPair& pair, const LinearDelta& delta) {
  const Residual residual(pair, delta);
  // Borders of blocks do not depend on the threads: a product's last bits may depend on where its rows stand.
  const size_t block_rows = delta.low_rank.empty() ? 1 : kProductRows;
  const size_t n_blocks = (residual.rows() + block_rows - 1) / block_rows;
  Buffer<ErrorSums> sums_of_row(residual.rows());
  const size_t grain = std::max<size_t>(1, RowGrain(residual.cols()) / block_rows);
  pool.ParallelFor(n_blocks, grain, [&](size_t begin, size_t end, size_t) {
    Mat<float> memory(2 * block_rows, residual.cols());
    for (size_t block = begin; block < end; ++block) {
      const size_t first = block * block_rows, n = std::min(block_rows, residual.rows() - first);
      const MatView<float> d = memory.Rows(0, n), r = memory.Rows(block_rows, block_rows + n);
      residual.Read(first, d, r);
      for (size_t i = 0; i < n; ++i) sums_of_row[first + i] = row_ops::SumErrors(d.RowSpan(i), r.RowSpan(i));
    }
  });
  return QualityOfRows(sums_of_row.span(), MatrixRows(pair.base));
}

}  // namespace df
