#include "codec/sign.h"

#include <algorithm>
#include <cmath>

#include "base/even_shares.h"
#include "codec/residual.h"
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

// Row `row` of R = D - D^, in the thread's own memory.
std::span<const float> ResidualRow(SignEncoder& encoder, size_t row, size_t thread) {
  const std::span<float> r = encoder.row_of_thread.view().RowSpan(thread);
  row_ops::Difference(encoder.pair, row, r);
  SubtractPlanes(encoder.encoded.delta.planes, row, r);
  return r;
}

// Rows are visited, and summed, in at most this many parts of fixed borders, whatever the number of threads: the sums
// are the same.
constexpr size_t kMaxParts = 64;

size_t NumberOfParts(const SignEncoder& encoder) { return std::min(kMaxParts, encoder.n_rows); }

// visit(row, row of R, part) for all rows; the rows of one part one after another, on one thread.
template <typename Visit>
void ForEachResidualRow(SignEncoder& encoder, const Visit& visit) {
  const size_t n_parts = NumberOfParts(encoder);
  const size_t part_rows = (encoder.n_rows + n_parts - 1) / std::max<size_t>(n_parts, 1);
  encoder.pool.ParallelFor(n_parts, RowGrain(part_rows * encoder.d_in), [&](size_t begin, size_t end, size_t thread) {
    for (size_t part = begin; part < end; ++part) {
      const size_t last = encoder.n_rows * (part + 1) / n_parts;
      for (size_t row = encoder.n_rows * part / n_parts; row < last; ++row) {
        visit(row, ResidualRow(encoder, row, thread), part);
      }
    }
  });
}

void SumParts(const Mat<double>& part_sums, std::span<double> sum) {
  std::ranges::fill(sum, 0.0);
  for (size_t part = 0; part < part_sums.rows(); ++part) {
    for (size_t j = 0; j < sum.size(); ++j) sum[j] += part_sums.Row(part)[j];
  }
}

// Whether the error follows from each row's magnitudes: one scale for all of a row.
bool HasClosedError(ScaleKind kind) { return kind == ScaleKind::kScalar || kind == ScaleKind::kRow; }

// What one look at all of R gives.
struct FirstLook {
  Buffer<double> row_sums;                 // [n_rows] sum_j |R_ij|
  Buffer<row_ops::Magnitudes> magnitudes;  // [n_rows] of the rows; empty unless kScalar or kRow
  Buffer<double> columns;                  // [d_in] of kRank1: |R|^T row_sums; of kColumn: sum_i |R_ij|; else empty
};

// The first plane's, where no sums over columns are wanted: D itself, never stored.
FirstLook WriteSignsOfDifference(SignEncoder& encoder, uint8_t* bits) {
  FirstLook look{Buffer<double>(encoder.n_rows), Buffer<row_ops::Magnitudes>(encoder.n_rows), {}};
  ParallelForEvenly(encoder.pool, encoder.n_rows, RowGrain(encoder.d_in), [&](size_t begin, size_t end, size_t) {
    for (size_t row = begin; row < end; ++row) {
      uint8_t* const to = bits + row * SignRowBytes(encoder.d_in);
      look.magnitudes[row] = row_ops::SignsOfDifference(encoder.pair, row, encoder.d_in, to);
      look.row_sums[row] = look.magnitudes[row].Sum();
    }
  });
  return look;
}

// Writes the signs of R besides.
FirstLook WriteSigns(SignEncoder& encoder, ScaleKind kind, uint8_t* bits) {
  const bool with_columns = kind == ScaleKind::kRank1 || kind == ScaleKind::kColumn;
  const bool with_magnitudes = HasClosedError(kind);
  if (with_magnitudes && encoder.encoded.delta.planes.empty()) return WriteSignsOfDifference(encoder, bits);
  FirstLook look{Buffer<double>(encoder.n_rows), Buffer<row_ops::Magnitudes>(with_magnitudes ? encoder.n_rows : 0),
                 Buffer<double>(with_columns ? encoder.d_in : 0)};
  Mat<double> part_sums(with_columns ? NumberOfParts(encoder) : 0, encoder.d_in);
  ForEachResidualRow(encoder, [&](size_t row, std::span<const float> r, size_t part) {
    row_ops::PackSigns(r, bits + row * SignRowBytes(encoder.d_in));
    if (with_magnitudes) {
      look.magnitudes[row] = row_ops::MagnitudesOf(r);
      look.row_sums[row] = look.magnitudes[row].Sum();
    } else {
      look.row_sums[row] = row_ops::AbsSum(r);
    }
    const double weight = kind == ScaleKind::kRank1 ? look.row_sums[row] : 1.0;
    if (with_columns) row_ops::AbsAxpy(weight, r, part_sums.view().RowSpan(part));
  });
  SumParts(part_sums, look.columns.span());
  return look;
}

double Sum(std::span<const double> values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum;
}

// One step of alternating least squares: u = |R| v and sum = |R|^T u. u [n_rows], v and sum [d_in].
void PowerStep(SignEncoder& encoder, std::span<const double> v, std::span<double> u, std::span<double> sum) {
  Mat<double> part_sums(NumberOfParts(encoder), encoder.d_in);
  ForEachResidualRow(encoder, [&](size_t row, std::span<const float> r, size_t part) {
    u[row] = row_ops::AbsDot(r, v);
    row_ops::AbsAxpy(u[row], r, part_sums.view().RowSpan(part));
  });
  SumParts(part_sums, sum);
}

struct SingularPair {
  Buffer<double> u;  // [n_rows] |R| v
  Buffer<double> v;  // [d_in] of length 1
};

// The top singular pair of |R| by power iteration from a constant v, for which u is the row means up to a factor and
// the first step is `look`. A step shrinks the error by (sigma_2 / sigma_1)^2, mostly 100 times and more since no entry
// is negative.
SingularPair TopSingularPair(SignEncoder& encoder, const FirstLook& look) {
  constexpr int kMaxSteps = 50;
  constexpr double kSmallestChange = 1e-7;  // of a unit vector: the scales are stored with 2^-24 = 6e-8
  SingularPair pair{Buffer<double>(encoder.n_rows), Buffer<double>(encoder.d_in)};
  const double constant = 1.0 / std::sqrt(static_cast<double>(encoder.d_in));
  std::ranges::fill(pair.v.span(), constant);
  for (size_t i = 0; i < encoder.n_rows; ++i) pair.u[i] = look.row_sums[i] * constant;
  Buffer<double> next(encoder.d_in);  // |R|^T u up to a factor, then of length 1
  std::ranges::copy(look.columns.span(), next.data());
  for (int step = 1;; ++step) {
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
    PowerStep(encoder, pair.v.span(), pair.u.span(), next.span());
  }
}

// The pair that minimises | |R| - u v^T | with |u| = |v|.
void SetRank1Scale(SignEncoder& encoder, const FirstLook& look, SignPlane& plane) {
  const SingularPair pair = TopSingularPair(encoder, look);
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

void SetColumnScale(SignEncoder& encoder, std::span<const double> column_sums, SignPlane& plane) {
  const OwnedScale col = AddScale(encoder.encoded, encoder.d_in);
  for (size_t j = 0; j < encoder.d_in; ++j) {
    col.values[j] = static_cast<float>(column_sums[j] / static_cast<double>(encoder.n_rows));
  }
  plane.col_scale = col.view;
}

void SetScale(SignEncoder& encoder, ScaleKind kind, const FirstLook& look, SignPlane& plane) {
  switch (kind) {
    case ScaleKind::kScalar:
      plane.scale = static_cast<float>(Sum(look.row_sums.span()) / static_cast<double>(encoder.n_rows * encoder.d_in));
      return;
    case ScaleKind::kRow: return SetRowScale(encoder, look.row_sums.span(), plane);
    case ScaleKind::kColumn: return SetColumnScale(encoder, look.columns.span(), plane);
    case ScaleKind::kRank1: return SetRank1Scale(encoder, look, plane);
  }
}

// Of one plane with one scale a a row: D - a sign(D) has the magnitudes | |D_ij| - a |.
Quality QualityOfOnePlane(const FirstLook& look, const SignPlane& plane) {
  ErrorSums sums;
  for (size_t i = 0; i < look.magnitudes.size(); ++i) {
    const row_ops::Magnitudes& row = look.magnitudes[i];
    const double a = plane.row_scale ? FloatAt(*plane.row_scale, i) : plane.scale;
    const double squares = row.Squares();
    sums.Add({.difference = squares,
              .cross = squares - a * row.Sum(),
              .error = std::max(row.SquaresAbout(a), 0.0),  // up to rounding
              .max_abs_error = std::max(double{row.largest} - a, a - double{row.smallest})});
  }
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
    const FirstLook look = WriteSigns(encoder, options.scale, bits + p * plane_bytes);
    const double sum = Sum(look.row_sums.span());
    if (!std::isfinite(sum)) return FindNonFinite(pair);  // f64 sums of finite f32 do not overflow
    if (p == 0 && sum == 0) return UnchangedWeight(d_out, d_in);
    SetScale(encoder, options.scale, look, plane);
    encoder.encoded.delta.planes.push_back(std::move(plane));
    if (options.n_planes == 1 && HasClosedError(options.scale) && encoder.n_rows == d_out) {
      encoder.encoded.quality = QualityOfOnePlane(look, encoder.encoded.delta.planes[0]);
      return std::move(encoder.encoded);
    }
  }
  encoder.encoded.quality = MeasureQuality(pool, pair, encoder.encoded.delta);
  return std::move(encoder.encoded);
}

}  // namespace df
