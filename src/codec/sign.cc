#include "codec/sign.h"

#include <algorithm>
#include <cmath>

#include "codec/row_ops.h"

namespace df {
namespace {

// A weight while it is encoded: the planes found so far lie in `encoded`.
struct SignEncoder {
  ThreadPool& pool;
  const WeightPair& pair;
  size_t n_rows;  // rows that both have
  size_t d_in;
  Mat<float> row_of_thread;  // [n_threads, d_in] where a thread works on its row
  EncodedWeight encoded;
};

// f32 values in memory of `encoded`, and their view.
struct OwnedScale {
  std::span<float> values;
  TensorView view;
};

OwnedScale AddScale(EncodedWeight& encoded, size_t size) {
  Buffer<uint8_t>& buffer = encoded.owned.emplace_back(size * sizeof(float));
  return {{reinterpret_cast<float*>(buffer.data()), size}, {DType::kF32, Shape{size}, {buffer.data(), buffer.size()}}};
}

std::span<const float> ScaleValues(const TensorView& view) {
  return {reinterpret_cast<const float*>(view.bytes.data()), view.elements()};
}

// r_j -= D^_ij of one plane.
void SubtractPlane(const SignPlane& plane, size_t row, std::span<float> r) {
  const uint8_t* bits = plane.bits.data() + row * SignRowBytes(r.size());
  const float scale = plane.row_scale ? ScaleValues(*plane.row_scale)[row] : plane.scale;
  if (plane.col_scale) {
    row_ops::SubtractSigns(bits, scale, ScaleValues(*plane.col_scale), r);
  } else {
    row_ops::SubtractSigns(bits, scale, r);
  }
}

void SubtractPlanes(const SignEncoder& encoder, size_t row, std::span<float> r) {
  for (const SignPlane& plane : encoder.encoded.delta.planes) SubtractPlane(plane, row, r);
}

// Row `row` of R = D - D^, in the thread's own memory.
std::span<const float> ResidualRow(SignEncoder& encoder, size_t row, size_t thread) {
  const std::span<float> r = encoder.row_of_thread.view().RowSpan(thread);
  row_ops::Difference(encoder.pair, row, r);
  SubtractPlanes(encoder, row, r);
  return r;
}

// Writes the signs of R and gives sum_j |R_ij|, [n_rows].
Buffer<double> WriteSigns(SignEncoder& encoder, uint8_t* bits) {
  Buffer<double> row_sums(encoder.n_rows);
  encoder.pool.ParallelFor(encoder.n_rows, RowGrain(encoder.d_in), [&](size_t begin, size_t end, size_t thread) {
    for (size_t row = begin; row < end; ++row) {
      const std::span<const float> r = ResidualRow(encoder, row, thread);
      row_ops::PackSigns(r, bits + row * SignRowBytes(encoder.d_in));
      row_sums[row] = row_ops::AbsSum(r);
    }
  });
  return row_sums;
}

double Sum(std::span<const double> values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum;
}

// Rows are summed in at most this many parts of fixed borders, whatever the number of threads: the sums are the same.
constexpr size_t kMaxParts = 64;

// One step of alternating least squares: u = |R| v and sum = |R|^T u. u [n_rows], v and sum [d_in].
void PowerStep(SignEncoder& encoder, std::span<const double> v, std::span<double> u, std::span<double> sum) {
  const size_t n_parts = std::min(kMaxParts, encoder.n_rows);
  Mat<double> part_sums(n_parts, encoder.d_in);
  const size_t part_rows = (encoder.n_rows + n_parts - 1) / n_parts;
  encoder.pool.ParallelFor(n_parts, RowGrain(part_rows * encoder.d_in), [&](size_t begin, size_t end, size_t thread) {
    for (size_t part = begin; part < end; ++part) {
      const size_t last = encoder.n_rows * (part + 1) / n_parts;
      for (size_t row = encoder.n_rows * part / n_parts; row < last; ++row) {
        const std::span<const float> r = ResidualRow(encoder, row, thread);
        u[row] = row_ops::AbsDot(r, v);
        row_ops::AbsAxpy(u[row], r, part_sums.view().RowSpan(part));
      }
    }
  });
  std::fill(sum.begin(), sum.end(), 0.0);
  for (size_t part = 0; part < n_parts; ++part) {
    for (size_t j = 0; j < sum.size(); ++j) sum[j] += part_sums.Row(part)[j];
  }
}

struct SingularPair {
  Buffer<double> u;  // [n_rows] |R| v
  Buffer<double> v;  // [d_in] of length 1
};

// The top singular pair of |R| by power iteration from a constant v, for which u is the row means up to a factor. A
// step shrinks the error by (sigma_2 / sigma_1)^2, mostly 100 times and more since no entry is negative.
SingularPair TopSingularPair(SignEncoder& encoder) {
  constexpr int kMaxSteps = 50;
  constexpr double kSmallestChange = 1e-7;  // of a unit vector: the scales are stored with 2^-24 = 6e-8
  SingularPair pair{Buffer<double>(encoder.n_rows), Buffer<double>(encoder.d_in)};
  std::ranges::fill(pair.v.span(), 1.0 / std::sqrt(static_cast<double>(encoder.d_in)));
  Buffer<double> next(encoder.d_in);
  for (int step = 1;; ++step) {
    PowerStep(encoder, pair.v.span(), pair.u.span(), next.span());
    const double length = std::sqrt(row_ops::SumOfSquares(next.span()));
    if (length == 0) return pair;  // R = 0
    double change = 0;
    for (size_t j = 0; j < next.size(); ++j) {
      next[j] /= length;
      change += (next[j] - pair.v[j]) * (next[j] - pair.v[j]);
    }
    // u is the best one for v, not for `next`: the pair is returned as it stands.
    if (step == kMaxSteps || change <= kSmallestChange * kSmallestChange) return pair;
    std::swap(pair.v, next);
  }
}

// The pair that minimises | |R| - u v^T | with |u| = |v|.
void SetRank1Scale(SignEncoder& encoder, SignPlane& plane) {
  const SingularPair pair = TopSingularPair(encoder);
  const double balance = std::sqrt(std::sqrt(row_ops::SumOfSquares(pair.u.span())));  // sqrt(sigma_1)
  const OwnedScale row = AddScale(encoder.encoded, MatrixRows(encoder.pair.fine_tune));
  const OwnedScale col = AddScale(encoder.encoded, encoder.d_in);
  if (balance > 0) {
    for (size_t i = 0; i < encoder.n_rows; ++i) row.values[i] = static_cast<float>(pair.u[i] / balance);
    for (size_t j = 0; j < encoder.d_in; ++j) col.values[j] = static_cast<float>(pair.v[j] * balance);
  }
  plane.row_scale = row.view;
  plane.col_scale = col.view;
}

void SetRowScale(SignEncoder& encoder, std::span<const double> row_sums, SignPlane& plane) {
  const OwnedScale row = AddScale(encoder.encoded, MatrixRows(encoder.pair.fine_tune));
  for (size_t i = 0; i < encoder.n_rows; ++i) {
    row.values[i] = static_cast<float>(row_sums[i] / static_cast<double>(encoder.d_in));
  }
  plane.row_scale = row.view;
}

void SetScale(SignEncoder& encoder, ScaleKind kind, std::span<const double> row_sums, SignPlane& plane) {
  switch (kind) {
    case ScaleKind::kScalar:
      plane.scale = static_cast<float>(Sum(row_sums) / static_cast<double>(encoder.n_rows * encoder.d_in));
      return;
    case ScaleKind::kRow: return SetRowScale(encoder, row_sums, plane);
    case ScaleKind::kRank1: return SetRank1Scale(encoder, plane);
  }
}

Quality MeasureQuality(SignEncoder& encoder) {
  Buffer<ErrorSums> rows(encoder.n_rows);
  Mat<float> differences(encoder.pool.n_threads(), encoder.d_in);
  encoder.pool.ParallelFor(encoder.n_rows, RowGrain(encoder.d_in), [&](size_t begin, size_t end, size_t thread) {
    const std::span<float> d = differences.view().RowSpan(thread);
    const std::span<float> r = encoder.row_of_thread.view().RowSpan(thread);
    for (size_t row = begin; row < end; ++row) {
      row_ops::Difference(encoder.pair, row, d);
      std::ranges::copy(d, r.begin());
      SubtractPlanes(encoder, row, r);
      rows[row] = row_ops::SumErrors(d, r);
    }
  });
  ErrorSums sums;
  for (const ErrorSums& row : rows.span()) sums.Add(row);
  return sums.ToQuality();
}

}  // namespace

Result<EncodedWeight> EncodeSign(ThreadPool& pool, const WeightPair& pair, SignOptions options) {
  const size_t d_out = MatrixRows(pair.fine_tune);
  const size_t d_in = MatrixCols(pair.fine_tune);
  const size_t plane_bytes = d_out * SignRowBytes(d_in);
  DF_CHECK(MatrixCols(pair.base) == d_in && options.n_planes >= 1 && options.n_planes <= kMaxPlanes);
  SignEncoder encoder{pool,
                      pair,
                      std::min(d_out, MatrixRows(pair.base)),
                      d_in,
                      Mat<float>(pool.n_threads(), d_in),
                      UnchangedWeight(d_out, d_in)};
  uint8_t* bits = encoder.encoded.owned.emplace_back(options.n_planes * plane_bytes).data();
  for (size_t p = 0; p < options.n_planes; ++p) {
    SignPlane plane;
    plane.bits = {bits + p * plane_bytes, plane_bytes};
    const Buffer<double> row_sums = WriteSigns(encoder, bits + p * plane_bytes);
    const double sum = Sum(row_sums.span());
    if (!std::isfinite(sum)) return FindNonFinite(pair);  // f64 sums of finite f32 do not overflow
    if (p == 0 && sum == 0) return UnchangedWeight(d_out, d_in);
    SetScale(encoder, options.scale, row_sums.span(), plane);
    encoder.encoded.delta.planes.push_back(std::move(plane));
  }
  encoder.encoded.quality = MeasureQuality(encoder);
  return std::move(encoder.encoded);
}

}  // namespace df
