#include "codec/fused.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "codec/residual.h"
#include "codec/row_ops.h"

namespace df {
namespace {

constexpr size_t kBlockRows = 32;       // that a product takes at once
constexpr double kAboveTheRest = 4;     // times: |D|^2 against rounding and what the product leaves
constexpr double kShareRestored = 0.7;  // of the weights that changed

struct Changed {
  size_t n = 0;
  size_t n_restored = 0;
};

// Half an ulp of a stored value with this magnitude, a power of two or zero for one below `smallest`.
float HalfUlp(float value, float smallest, float per_exponent) {
  const auto power = std::bit_cast<float>(std::bit_cast<uint32_t>(value) & 0x7F800000U);
  return std::max(power, smallest) * per_exponent;
}

// Of one row: a weight is restored where what is left of its difference is within half its ulp and `slack`.
Changed CountRow(std::span<const float> weights, std::span<const float> d, std::span<const float> r, DType dtype,
                 float slack) {
  const float smallest = dtype == DType::kF16 ? 0x1.0p-14F : 0x1.0p-126F;
  const float per_exponent = dtype == DType::kBf16 ? 0x1.0p-8F : dtype == DType::kF16 ? 0x1.0p-11F : 0x1.0p-24F;
  uint32_t n = 0, n_restored = 0;
  for (size_t j = 0; j < d.size(); ++j) {
    const uint32_t changed = d[j] != 0 ? 1 : 0;
    const uint32_t restored = std::fabs(r[j]) <= HalfUlp(weights[j], smallest, per_exponent) + slack ? 1 : 0;
    n += changed;
    n_restored += changed & restored;
  }
  return {n, n_restored};
}

Changed CountRestored(ThreadPool& pool, const WeightPair& pair, const LinearDelta& delta, float slack) {
  const Residual residual(pair, delta);
  const size_t rows = residual.rows(), cols = residual.cols();
  Buffer<Changed> of_row(rows);
  const size_t grain = std::max<size_t>(1, RowGrain(cols) / kBlockRows);
  pool.ParallelFor((rows + kBlockRows - 1) / kBlockRows, grain, [&](size_t begin, size_t end, size_t) {
    Mat<float> memory(2 * kBlockRows + 1, cols);
    for (size_t block = begin; block < end; ++block) {
      const size_t first = block * kBlockRows, n = std::min(kBlockRows, rows - first);
      const MatView<float> d = memory.Rows(0, n), r = memory.Rows(kBlockRows, kBlockRows + n);
      const std::span<float> weights = memory.view().RowSpan(2 * kBlockRows);
      residual.Read(first, d, r);
      for (size_t i = 0; i < n; ++i) {
        row_ops::ReadRow(pair.fine_tune, first + i, weights);
        of_row[first + i] = CountRow(weights, d.RowSpan(i), r.RowSpan(i), pair.fine_tune.dtype, slack);
      }
    }
  });
  Changed all;
  for (const Changed& row : of_row.span()) {
    all.n += row.n;
    all.n_restored += row.n_restored;
  }
  return all;
}

}  // namespace

bool IsFused(ThreadPool& pool, const WeightPair& pair, const EncodedWeight& encoded, const FusedTruth& truth) {
  const double error = encoded.quality.relative_frobenius;
  const double rest = error * error * truth.difference;
  if (rest > FusedRest(truth.rounding) + truth.resolved * truth.resolved) return false;
  if (kAboveTheRest * std::max(rest, truth.rounding) > truth.difference) return false;
  const double n_entries = static_cast<double>(encoded.delta.d_out) * static_cast<double>(encoded.delta.d_in);
  const auto slack = static_cast<float>(3 * truth.resolved / std::sqrt(n_entries));  // of an entry's deviation
  const Changed changed = CountRestored(pool, pair, encoded.delta, slack);
  return static_cast<double>(changed.n_restored) >= kShareRestored * static_cast<double>(changed.n);
}

}  // namespace df
