#include "codec/calibrate.h"

#include <algorithm>
#include <cmath>

#include "base/float16.h"
#include "codec/output_target.h"
#include "codec/row_ops.h"
#include "linalg/conjugate_gradients.h"
#include "linalg/products.h"

namespace df {
namespace {

constexpr int kSweeps = 2;  // over several planes

// One plane while its scales are fitted. The other parts of the delta stand.
class PlaneFit {
 public:
  PlaneFit(ThreadPool& pool, const WeightPair& pair, const WeightInputs& inputs, const EncodedWeight& encoded,
           size_t plane)
      : pool_(pool),
        pair_(pair),
        inputs_(inputs),
        d_out_(encoded.delta.d_out),
        d_in_(encoded.delta.d_in),
        plane_(encoded.delta.planes[plane]),
        others_(encoded.delta),
        u_(d_out_),
        v_(d_in_) {
    others_.planes.erase(others_.planes.begin() + static_cast<ptrdiff_t>(plane));
    for (size_t i = 0; i < d_out_; ++i) u_[i] = plane_.row_scale ? FloatAt(*plane_.row_scale, i) : plane_.scale;
    for (size_t j = 0; j < d_in_; ++j) v_[j] = plane_.col_scale ? FloatAt(*plane_.col_scale, j) : 1.0F;
  }

  // Leaves the scales as they will be stored.
  void Run() {
    if (inputs_.HasMoment()) {
      SetTarget();
      if (plane_.col_scale) FitColumnsAndRows();
      Round(v_.span());
      if (HasRowScales()) FitRows();
    } else if (HasRowScales()) {
      Round(v_.span());
      FitRowsOnTokens();
    }
    if (plane_.row_scale) Round(u_.span());
    Round(v_.span());
  }

  std::span<const float> rows() const { return u_.span(); }
  std::span<const float> columns() const { return v_.span(); }

 private:
  // A scalar is a row scale too, one for all rows.
  bool HasRowScales() const { return plane_.row_scale || !plane_.col_scale; }

  void FitColumnsAndRows() {
    if (!plane_.row_scale) return FitColumns();
    for (int round = 0; round < kCalibrationRounds; ++round) {
      FitRows();
      FitColumns();
    }
    Balance();
  }

  // Rows [first, first + p.rows) of S diag(v).
  void ReadSigns(size_t first, std::span<const float> v, MatView<float> p) const {
    for (size_t i = 0; i < p.rows; ++i) {
      std::ranges::fill(p.RowSpan(i), 0.0F);
      row_ops::SubtractSigns(plane_.bits.data() + (first + i) * SignRowBytes(d_in_), -1.0F, v, p.RowSpan(i));
    }
  }

  // target = S o G.
  void SetTarget() {
    target_ = Mat<float>(d_out_, d_in_);
    const OutputTarget output(pair_, others_, inputs_);
    const std::vector<float> ones(d_in_, 1.0F);
    Mat<float> memory(pool_.n_threads() * kBlockRows, d_in_);
    ForEachBlock(pool_, d_out_, [&](size_t first, size_t n, size_t thread) {
      const MatView<float> block = memory.Rows(thread * kBlockRows, thread * kBlockRows + n);
      const MatView<float> target = target_.Rows(first, first + n);
      output.Read(first, block, target);
      ReadSigns(first, ones, block);
      for (size_t i = 0; i < n; ++i) {
        for (size_t j = 0; j < d_in_; ++j) target.Row(i)[j] *= block.Row(i)[j];
      }
    });
  }

  // u for v: the best scale of each row, or of all where the plane has but one.
  void FitRows() {
    Buffer<double> gains(d_out_), squares(d_out_);
    Mat<float> memory(2 * pool_.n_threads() * kBlockRows, d_in_);
    ForEachBlock(pool_, d_out_, [&](size_t first, size_t n, size_t thread) {
      const size_t at = 2 * thread * kBlockRows;
      const MatView<float> p = memory.Rows(at, at + n), product = memory.Rows(at + kBlockRows, at + kBlockRows + n);
      ReadSigns(first, v_.span(), p);
      linalg::Multiply(p, inputs_.moment.view(), product);
      for (size_t i = 0; i < n; ++i) {
        gains[first + i] = Dot(target_.Rows(first + i, first + i + 1).RowSpan(0), v_.span());
        squares[first + i] = Dot(p.RowSpan(i), product.RowSpan(i));
      }
    });
    SetRows(gains.span(), squares.span());
  }

  void SetRows(std::span<const double> gains, std::span<const double> squares) {
    if (!plane_.row_scale) {
      double gain = 0, square = 0;
      for (size_t i = 0; i < d_out_; ++i) {
        gain += gains[i];
        square += squares[i];
      }
      if (square > 0 && std::isfinite(gain / square)) std::ranges::fill(u_.span(), static_cast<float>(gain / square));
      return;
    }
    for (size_t i = 0; i < d_out_; ++i) {
      const double scale = gains[i] / squares[i];
      if (squares[i] > 0 && std::isfinite(scale)) u_[i] = static_cast<float>(scale);  // else inputs overflowed
    }
  }

  // v for u.
  void FitColumns() {
    const Mat<float> system = ColumnSystem();
    Buffer<double> gains(d_in_), v(d_in_);
    for (size_t i = 0; i < d_out_; ++i) {
      for (size_t j = 0; j < d_in_; ++j) gains[j] += double{u_[i]} * double{target_.Row(i)[j]};
    }
    for (size_t j = 0; j < d_in_; ++j) v[j] = double{v_[j]};
    linalg::SolveByConjugateGradients(pool_, system.view(), gains.span(), v.span());
    for (size_t j = 0; j < d_in_; ++j) {
      if (std::isfinite(v[j])) v_[j] = static_cast<float>(v[j]);
    }
  }

  // (S^T diag(u^2) S) o C. Its rows are made in tiles, each from all rows of the weight.
  Mat<float> ColumnSystem() const {
    constexpr size_t kTile = 128;
    Mat<float> system(d_in_, d_in_);
    const std::vector<float> ones(d_in_, 1.0F);
    Mat<float> memory(pool_.n_threads() * kBlockRows, d_in_);
    pool_.ParallelFor((d_in_ + kTile - 1) / kTile, 1, [&](size_t begin, size_t end, size_t thread) {
      for (size_t tile = begin; tile < end; ++tile) {
        const size_t from = tile * kTile, n_columns = std::min(kTile, d_in_ - from);
        const MatView<float> rows = system.Rows(from, from + n_columns);
        for (size_t first = 0; first < d_out_; first += kBlockRows) {
          const size_t n = std::min(kBlockRows, d_out_ - first);
          const MatView<float> p = memory.Rows(thread * kBlockRows, thread * kBlockRows + n);
          for (size_t i = 0; i < n; ++i) {
            std::ranges::fill(p.RowSpan(i), 0.0F);
            row_ops::SubtractSigns(plane_.bits.data() + (first + i) * SignRowBytes(d_in_), -u_[first + i], ones,
                                   p.RowSpan(i));
          }
          linalg::AddTransposedProduct({p.data + from, n, n_columns, p.stride}, p, rows);
        }
        for (size_t i = 0; i < n_columns; ++i) {
          for (size_t j = 0; j < d_in_; ++j) rows.Row(i)[j] *= inputs_.moment.Row(from + i)[j];
        }
      }
    });
    return system;
  }

  // |u| = |v|: neither leaves the range of its type.
  void Balance() {
    const double u = std::sqrt(Dot(u_.span(), u_.span())), v = std::sqrt(Dot(v_.span(), v_.span()));
    if (!(u > 0) || !(v > 0)) return;
    for (float& value : v_.span()) value = static_cast<float>(double{value} * std::sqrt(u / v));
    for (float& value : u_.span()) value = static_cast<float>(double{value} * std::sqrt(v / u));
  }

  // u for v by sums over tokens, without C.
  void FitRowsOnTokens() {
    Buffer<double> gains(d_out_), squares(d_out_);
    const Residual residual(pair_, others_);
    const size_t n_tokens = inputs_.coded.rows;
    Mat<float> weights(2 * pool_.n_threads() * kBlockRows, d_in_);
    Mat<float> outputs(2 * pool_.n_threads() * n_tokens, kBlockRows);
    ForEachBlock(pool_, d_out_, [&](size_t first, size_t n, size_t thread) {
      const size_t at = 2 * thread * kBlockRows, at_token = 2 * thread * n_tokens;
      const MatView<float> r = weights.Rows(at, at + n), w = weights.Rows(at + kBlockRows, at + kBlockRows + n);
      const MatView<float> y{outputs.Row(at_token), n_tokens, n, kBlockRows};
      const MatView<float> z{outputs.Row(at_token + n_tokens), n_tokens, n, kBlockRows};
      std::fill_n(y.data, 2 * n_tokens * kBlockRows, 0.0F);
      residual.Read(first, w, r);
      if (inputs_.HasDrift()) {  // y = W x - (W - R) x^
        for (size_t i = 0; i < n; ++i) {
          row_ops::ReadRow(pair_.fine_tune, first + i, w.RowSpan(i));
          for (size_t j = 0; j < d_in_; ++j) r.Row(i)[j] -= w.Row(i)[j];
        }
        linalg::AddProductTransposed(inputs_.fine_tune, w, y);
      }
      linalg::AddProductTransposed(inputs_.coded, r, y);
      ReadSigns(first, v_.span(), w);
      linalg::AddProductTransposed(inputs_.coded, w, z);
      for (size_t t = 0; t < n_tokens; ++t) {
        for (size_t i = 0; i < n; ++i) {
          gains[first + i] += double{y.Row(t)[i]} * double{z.Row(t)[i]};
          squares[first + i] += double{z.Row(t)[i]} * double{z.Row(t)[i]};
        }
      }
    });
    SetRows(gains.span(), squares.span());
  }

  static void Round(std::span<float> values) {
    for (float& value : values) value = ToFloat(ToBf16(value));
  }

  ThreadPool& pool_;
  const WeightPair& pair_;
  const WeightInputs& inputs_;
  size_t d_out_, d_in_;
  SignPlane plane_;
  LinearDelta others_;  // the delta without this plane
  Mat<float> target_;   // [d_out, d_in] S o G
  Buffer<float> u_;     // [d_out]
  Buffer<float> v_;     // [d_in]
};

// The values as BF16, in memory of `encoded`; they are such already.
TensorView AddScale(std::span<const float> values, EncodedWeight& encoded) {
  Buffer<uint8_t>& buffer = encoded.owned.emplace_back(values.size() * sizeof(uint16_t));
  row_ops::Narrow(values, DType::kBf16, buffer.data());
  return {DType::kBf16, Shape{values.size()}, buffer.span()};
}

}  // namespace

void CalibratePlanes(ThreadPool& pool, const WeightPair& pair, const WeightInputs& inputs, EncodedWeight& encoded) {
  DF_CHECK(MatrixRows(pair.base) == encoded.delta.d_out && inputs.coded.cols == encoded.delta.d_in);
  const size_t n_planes = encoded.delta.planes.size();
  for (int sweep = 0; sweep < (n_planes > 1 ? kSweeps : 1); ++sweep) {
    for (size_t p = 0; p < n_planes; ++p) {
      PlaneFit fit(pool, pair, inputs, encoded, p);
      fit.Run();
      SignPlane& plane = encoded.delta.planes[p];
      if (plane.row_scale) plane.row_scale = AddScale(fit.rows(), encoded);
      if (plane.col_scale) plane.col_scale = AddScale(fit.columns(), encoded);
      if (!plane.row_scale && !plane.col_scale) plane.scale = fit.rows()[0];
    }
  }
  if (n_planes > 0) encoded.quality = MeasureQuality(pool, pair, encoded.delta);
}

uint64_t FittedBytes(const LinearDelta& delta) {
  uint64_t bytes = StoredBytes(delta);
  for (const SignPlane& plane : delta.planes) {
    for (const std::optional<TensorView>& scale : {plane.row_scale, plane.col_scale}) {
      if (scale) bytes -= scale->bytes.size() - scale->elements() * sizeof(uint16_t);
    }
  }
  return bytes;
}

}  // namespace df
