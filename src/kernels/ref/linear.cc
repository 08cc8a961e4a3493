#include "kernels/ref/linear.h"

#include <algorithm>
#include <vector>

#include "base/float16.h"
#include "kernels/linear_path.h"

namespace df::kernels::ref {
namespace {

const PackedDelta& DeltaOf(const LinearSegment& segment, const PackedDelta& none) {
  return segment.delta != nullptr ? *segment.delta : none;
}

// The row that replaces row `out`, if there is one.
bool ReplacedRow(const PackedDelta& delta, size_t out, std::span<double> w) {
  if (!delta.rows) return false;
  const auto& index = delta.rows->index;
  const auto found = std::lower_bound(index.begin(), index.end(), static_cast<int32_t>(out));
  if (found == index.end() || *found != static_cast<int32_t>(out)) return false;
  const auto row = static_cast<size_t>(found - index.begin());
  for (size_t k = 0; k < w.size(); ++k) w[k] = delta.rows->values.At(row, k);
  return true;
}

// Row `out` of W with the planes added.
void FoldedRow(const PackedWeight& weight, const PackedDelta& delta, size_t out, std::span<double> w) {
  for (size_t k = 0; k < w.size(); ++k) {
    w[k] = out < weight.d_out ? weight.At(out, k) : 0.0F;
    for (const PackedPlane& plane : delta.planes) {
      const double scale = plane.col_scale.empty() ? 1.0F : plane.col_scale[k];
      w[k] += plane.row_scale[out] * scale * plane.Sign(out, k);
    }
  }
}

// The same in f32, an operation after the other as panels do it, and then rounded: so that both round alike.
void RoundedRow(const PackedWeight& weight, const PackedDelta& delta, size_t out, std::span<double> w) {
  for (size_t k = 0; k < w.size(); ++k) {
    float sum = out < weight.d_out ? weight.At(out, k) : 0.0F;
    for (const PackedPlane& plane : delta.planes) sum += plane.At(out, k);
    w[k] = ToFloat(ToBf16(sum));
  }
}

double Dot(std::span<const double> w, const float* x) {
  double sum = 0;
  for (size_t k = 0; k < w.size(); ++k) sum += x[k] * w[k];
  return sum;
}

// What the row of bytes of `out` adds, if there is one.
void AddByteRow(const PackedDelta& delta, size_t out, std::span<double> w) {
  if (!delta.byte_rows) return;
  const size_t place = delta.byte_rows->Find(out);
  if (place == delta.byte_rows->index.size()) return;
  for (size_t k = 0; k < w.size(); ++k)
    w[k] += double{delta.byte_rows->step[place]} * delta.byte_rows->values.At(place, k);
}

// t [n_rows, r] = scale * x A^T, for every low-rank pair of the delta one after the other.
std::vector<double> DownProducts(const PackedDelta& delta, MatView<const float> x) {
  std::vector<double> t;
  for (const PackedLowRank& pair : delta.low_rank) {
    for (size_t row = 0; row < x.rows; ++row) {
      for (size_t j = 0; j < pair.rank; ++j) {
        double sum = 0;
        for (size_t k = 0; k < x.cols; ++k) sum += double{x.Row(row)[k]} * pair.a.At(j, k);
        t.push_back(sum * pair.scale);
      }
    }
  }
  return t;
}

double UpProduct(const PackedDelta& delta, std::span<const double> t, size_t n_rows, size_t row, size_t out) {
  double sum = 0;
  size_t offset = 0;
  for (const PackedLowRank& pair : delta.low_rank) {
    for (size_t j = 0; j < pair.rank; ++j) sum += t[offset + row * pair.rank + j] * pair.b.At(out, j);
    offset += n_rows * pair.rank;
  }
  return sum;
}

float BiasAt(const LinearWeight& base, const PackedDelta& delta, size_t out) {
  const Buffer<float>& bias = delta.bias.empty() ? base.bias : delta.bias;
  return out < bias.size() ? bias[out] : 0.0F;
}

Mat<float> RoundedRows(MatView<const float> x) {
  Mat<float> rounded(x.rows, x.cols);
  for (size_t row = 0; row < x.rows; ++row) {
    for (size_t k = 0; k < x.cols; ++k) rounded.Row(row)[k] = ToFloat(ToBf16(x.Row(row)[k]));
  }
  return rounded;
}

// Rows of one segment. Rounded to bf16 are its x and W with the planes, nothing else.
void LinearOfSegment(KernelContext& context, const LinearWeight& base, const PackedDelta& delta, size_t d_out,
                     bool is_bf16, MatView<const float> x, MatView<float> y) {
  const PackedWeight& weight = delta.raw ? *delta.raw : base.weight;
  const std::vector<double> t = DownProducts(delta, x);
  const Mat<float> rounded = is_bf16 ? RoundedRows(x) : Mat<float>();
  context.pool.ParallelFor(d_out, 1, [&](size_t begin, size_t end, size_t) {
    std::vector<double> w(x.cols), w_rounded(is_bf16 ? x.cols : 0);
    for (size_t out = begin; out < end; ++out) {
      std::fill(w.begin(), w.end(), 0.0);
      const bool is_replaced = ReplacedRow(delta, out, w);
      if (!is_replaced) {
        is_bf16 ? RoundedRow(weight, delta, out, w_rounded) : FoldedRow(weight, delta, out, w);
        AddByteRow(delta, out, w);
      }
      const double gain = delta.gain_row.empty() ? 1.0F : delta.gain_row[out];
      for (size_t row = 0; row < x.rows; ++row) {
        double sum = UpProduct(delta, t, x.rows, row, out) + Dot(w, x.Row(row));
        if (is_bf16 && !is_replaced) sum += Dot(w_rounded, rounded.Row(row));
        y.Row(row)[out] = static_cast<float>(gain * sum + BiasAt(base, delta, out));
      }
    }
  });
}

}  // namespace

void Linear(KernelContext& context, const LinearWeight& base, std::span<const LinearSegment> segments,
            MatView<const float> x, MatView<float> y) {
  const PackedDelta none;
  for (const LinearSegment& segment : segments) {
    const size_t d_out = segment.delta != nullptr ? segment.delta->d_out : base.weight.d_out;
    LinearOfSegment(context, base, DeltaOf(segment, none), d_out, RoundsToBf16(context.options, segment),
                    x.Rows(segment.begin, segment.end), y.Rows(segment.begin, segment.end));
  }
}

}  // namespace df::kernels::ref
