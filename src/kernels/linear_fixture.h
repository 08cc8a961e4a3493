// Random layers in stored form for the tests and benchmarks of linear.h, and the formula over them in f64.
#ifndef DELTAFOLD_KERNELS_LINEAR_FIXTURE_H_
#define DELTAFOLD_KERNELS_LINEAR_FIXTURE_H_

#include <algorithm>
#include <cmath>
#include <cstring>
#include <list>
#include <vector>

#include "base/float16.h"
#include "base/rng.h"
#include "kernels/linear.h"
#include "kernels/prefill_dtype.h"

namespace df::kernels {

// Stored tensors and the bytes behind them.
class TensorStore {
 public:
  explicit TensorStore(uint64_t seed) : seed_(seed) {}

  uint64_t Draw() { return RandomBits(seed_, draw_++); }
  float Uniform(float low, float high) {
    return low + (high - low) * static_cast<float>(static_cast<double>(Draw() >> 11) * 0x1.0p-53);
  }

  std::vector<uint8_t>& Keep(std::vector<uint8_t> bytes) { return bytes_.emplace_back(std::move(bytes)); }

  TensorView Random(DType dtype, const Shape& shape, float low, float high) {
    const size_t n = *shape.TryElements();
    std::vector<uint8_t>& bytes = Keep(std::vector<uint8_t>(n * DTypeBytes(dtype)));
    for (size_t i = 0; i < n; ++i) Encode(dtype, Uniform(low, high), bytes.data() + i * DTypeBytes(dtype));
    return {dtype, shape, bytes};
  }

  Bytes RandomSigns(size_t d_out, size_t d_in) {
    std::vector<uint8_t>& bytes = Keep(std::vector<uint8_t>(d_out * SignRowBytes(d_in)));
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(Draw());
    if (d_in % 8 != 0) {
      for (size_t row = 0; row < d_out; ++row) {
        bytes[(row + 1) * SignRowBytes(d_in) - 1] &= static_cast<uint8_t>((1 << d_in % 8) - 1);
      }
    }
    return bytes;
  }

 private:
  static void Encode(DType dtype, float value, uint8_t* to) {
    const Bf16 bf16 = ToBf16(value);
    const F16 f16 = ToF16(value);
    if (dtype == DType::kBf16) {
      std::memcpy(to, &bf16, sizeof(bf16));
    } else if (dtype == DType::kF16) {
      std::memcpy(to, &f16, sizeof(f16));
    } else {
      std::memcpy(to, &value, sizeof(value));
    }
  }

  uint64_t seed_;
  uint64_t draw_ = 0;
  std::list<std::vector<uint8_t>> bytes_;
};

struct DeltaShape {
  size_t planes = 0;
  bool row_scale = false;
  bool col_scale = false;
  std::vector<size_t> ranks = {};
  std::vector<int32_t> rows = {};
  std::vector<int32_t> byte_rows = {};
  bool raw = false;
  bool gain = false;
  bool bias = false;
  DType dtype = DType::kBf16;  // of factors, rows, raw
};

inline LinearDelta RandomDelta(TensorStore& store, size_t d_out, size_t d_in, const DeltaShape& shape) {
  LinearDelta delta;
  delta.d_out = d_out;
  delta.d_in = d_in;
  for (size_t p = 0; p < shape.planes; ++p) {
    SignPlane plane = {.bits = store.RandomSigns(d_out, d_in),
                       .scale = store.Uniform(-0.02F, 0.02F),
                       .row_scale = {},
                       .col_scale = {}};
    if (shape.row_scale) plane.row_scale = store.Random(DType::kF32, {d_out}, -1.0F, 1.5F);
    if (shape.col_scale) plane.col_scale = store.Random(DType::kBf16, {d_in}, -1.0F, 1.5F);
    delta.planes.push_back(plane);
  }
  for (const size_t rank : shape.ranks) {
    delta.low_rank.push_back({.a = store.Random(shape.dtype, {rank, d_in}, -0.1F, 0.1F),
                              .b = store.Random(shape.dtype, {d_out, rank}, -0.1F, 0.1F),
                              .scale = store.Uniform(0.1F, 2.0F)});
  }
  if (!shape.rows.empty()) {
    delta.rows =
        ReplacedRows{.index = shape.rows, .values = store.Random(shape.dtype, {shape.rows.size(), d_in}, -0.1F, 0.1F)};
  }
  if (!shape.byte_rows.empty()) {
    const size_t k = shape.byte_rows.size();
    std::vector<uint8_t>& bytes = store.Keep(std::vector<uint8_t>(k * d_in));
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(store.Draw());
    delta.byte_rows = ByteRows{.index = shape.byte_rows,
                               .values = {DType::kI8, {k, d_in}, bytes},
                               .step = store.Random(DType::kF32, {k}, -0.001F, 0.001F)};
  }
  if (shape.raw) delta.raw = store.Random(shape.dtype, {d_out, d_in}, -0.1F, 0.1F);
  if (shape.gain) delta.gain_row = store.Random(DType::kF32, {d_out}, 0.5F, 2.0F);
  if (shape.bias) delta.bias = store.Random(DType::kF32, {d_out}, -1.0F, 1.0F);
  return delta;
}

// A sum and the same sum over absolute values.
struct ExactValue {
  double value = 0;
  double magnitude = 0;

  void Add(double v) {
    value += v;
    magnitude += std::abs(v);
  }
};

// linear.h's formula in f64 from the stored form, output after output, for any number of rows of x.
class ExactLinear {
 public:
  ExactLinear(const TensorView& weight, const TensorView* bias, const LinearDelta* delta)
      : weight_(weight), bias_(bias), delta_(delta) {}

  size_t d_out() const { return delta_ != nullptr ? delta_->d_out : weight_.shape[0]; }

  // y[row * d_out + out]
  std::vector<ExactValue> operator()(MatView<const float> x) const {
    std::vector<ExactValue> y(x.rows * d_out());
    const std::vector<ExactValue> down = Down(x);
    std::vector<ExactValue> w(x.cols);
    for (size_t out = 0; out < d_out(); ++out) {
      FillRow(out, w);
      for (size_t row = 0; row < x.rows; ++row) {
        ExactValue sum;
        for (size_t k = 0; k < x.cols; ++k) {
          sum.value += x.Row(row)[k] * w[k].value;
          sum.magnitude += std::abs(x.Row(row)[k]) * w[k].magnitude;
        }
        AddUp(down, x.rows, row, out, sum);
        Finish(out, sum);
        y[row * d_out() + out] = sum;
      }
    }
    return y;
  }

 private:
  void FillRow(size_t out, std::vector<ExactValue>& w) const {
    const size_t d_in = w.size();
    const TensorView& weight = delta_ != nullptr && delta_->raw ? *delta_->raw : weight_;
    for (size_t k = 0; k < d_in; ++k) {
      w[k] = {};
      if (out < weight.shape[0]) w[k].Add(FloatAt(weight, out * d_in + k));
      if (delta_ == nullptr) continue;
      for (const SignPlane& plane : delta_->planes) {
        double scale = plane.scale;
        if (plane.row_scale) scale *= FloatAt(*plane.row_scale, out);
        if (plane.col_scale) scale *= FloatAt(*plane.col_scale, k);
        w[k].Add((plane.bits[out * SignRowBytes(d_in) + k / 8] >> (k % 8) & 1) != 0 ? scale : -scale);
      }
    }
    if (delta_ != nullptr && delta_->byte_rows) AddByteRow(out, w);
    if (delta_ == nullptr || !delta_->rows) return;
    for (size_t i = 0; i < delta_->rows->index.size(); ++i) {
      if (static_cast<size_t>(delta_->rows->index[i]) != out) continue;
      for (size_t k = 0; k < d_in; ++k) {
        w[k] = {};
        w[k].Add(FloatAt(delta_->rows->values, i * d_in + k));
      }
    }
  }

  void AddByteRow(size_t out, std::vector<ExactValue>& w) const {
    const ByteRows& rows = *delta_->byte_rows;
    for (size_t i = 0; i < rows.index.size(); ++i) {
      if (static_cast<size_t>(rows.index[i]) != out) continue;
      for (size_t k = 0; k < w.size(); ++k) {
        const auto q = static_cast<int8_t>(rows.values.bytes[i * w.size() + k]);
        w[k].Add(double{FloatAt(rows.step, i)} * q);
      }
    }
  }

  std::vector<ExactValue> Down(MatView<const float> x) const {
    std::vector<ExactValue> down;
    if (delta_ == nullptr) return down;
    for (const LowRank& pair : delta_->low_rank) {
      for (size_t row = 0; row < x.rows; ++row) {
        for (size_t j = 0; j < pair.a.shape[0]; ++j) {
          ExactValue sum;
          for (size_t k = 0; k < x.cols; ++k)
            sum.Add(double{pair.scale} * x.Row(row)[k] * FloatAt(pair.a, j * x.cols + k));
          down.push_back(sum);
        }
      }
    }
    return down;
  }

  void AddUp(const std::vector<ExactValue>& down, size_t n_rows, size_t row, size_t out, ExactValue& sum) const {
    if (delta_ == nullptr) return;
    size_t offset = 0;
    for (const LowRank& pair : delta_->low_rank) {
      const size_t rank = pair.a.shape[0];
      for (size_t j = 0; j < rank; ++j) {
        const ExactValue& t = down[offset + row * rank + j];
        const double b = FloatAt(pair.b, out * rank + j);
        sum.value += t.value * b;
        sum.magnitude += t.magnitude * std::abs(b);
      }
      offset += n_rows * rank;
    }
  }

  void Finish(size_t out, ExactValue& sum) const {
    if (delta_ != nullptr && delta_->gain_row) {
      sum.value *= FloatAt(*delta_->gain_row, out);
      sum.magnitude *= std::abs(FloatAt(*delta_->gain_row, out));
    }
    const TensorView* bias = delta_ != nullptr && delta_->bias ? &*delta_->bias : bias_;
    if (bias != nullptr && out < bias->elements()) sum.Add(FloatAt(*bias, out));
  }

  TensorView weight_;
  const TensorView* bias_;
  const LinearDelta* delta_;
};

// linear.h's bounds, per unit of magnitude and in absolute terms.
inline double LinearBound(size_t d_in, size_t rank) {
  return (512.0 + static_cast<double>((d_in + 31) / 32 + rank + 8)) * 0x1.0p-24;
}

// What rounding to bf16 adds.
inline constexpr double kBf16Bound = 0x1.0p-7 + 0x1.0p-15;

// What the current target can multiply prompts in.
inline std::vector<PrefillDtype> PossiblePrefillDtypes() {
  if (!CheckPrefillDtype(PrefillDtype::kBf16).ok()) return {PrefillDtype::kF32};
  return {PrefillDtype::kF32, PrefillDtype::kBf16};
}

// How far 14-bit tables may be off beside that, for one output of one row. An outlier is left in: it only makes q
// larger.
inline double LookupBound(const LinearDelta& delta, size_t out, const float* x) {
  double bound = 0;
  for (const SignPlane& plane : delta.planes) {
    const double scale = std::abs(plane.scale * (plane.row_scale ? FloatAt(*plane.row_scale, out) : 1.0F));
    for (size_t begin = 0; begin < delta.d_in; begin += 512) {
      const size_t end = std::min(delta.d_in, begin + 512);
      double largest = 0;
      for (size_t quad = begin; quad < end; quad += 4) {
        double sum = 0;
        for (size_t k = quad; k < std::min(end, quad + 4); ++k) {
          sum += std::abs(x[k] * (plane.col_scale ? FloatAt(*plane.col_scale, k) : 1.0F));
        }
        largest = std::max(largest, sum);
      }
      bound += scale * static_cast<double>((end - begin + 7) / 8 * 2) * 0.5 * largest / 8191;
    }
  }
  return bound * 1.001 * (delta.gain_row ? std::abs(FloatAt(*delta.gain_row, out)) : 1.0);
}

inline size_t MostRank(const LinearDelta* delta) {
  size_t rank = 0;
  if (delta != nullptr) {
    for (const LowRank& pair : delta->low_rank) rank = std::max(rank, pair.a.shape[0]);
  }
  return rank;
}

inline Mat<float> RandomRows(TensorStore& store, size_t n, size_t d_in) {
  Mat<float> x(n, d_in);
  for (size_t row = 0; row < n; ++row) {
    for (size_t k = 0; k < d_in; ++k) x.Row(row)[k] = store.Uniform(-1.0F, 1.0F);
  }
  return x;
}

}  // namespace df::kernels

#endif  // DELTAFOLD_KERNELS_LINEAR_FIXTURE_H_
