#include "codec/byte_rows.h"

#include <algorithm>
#include <cmath>

#include "codec/exact.h"
#include "codec/residual.h"

namespace df {
namespace {

// Adding and taking away 1.5 * 2^23 rounds to the nearest even integer.
constexpr float kRounder = 12582912.0F;

// Returns the step. A row whose largest entry is too small for a step to be a normal number becomes zeros.
float Quantize(std::span<const float> d, int8_t* q) {
  float largest = 0;
  for (const float value : d) largest = std::max(largest, std::fabs(value));
  const float step = largest / 127.0F;
  const float inverse = step >= std::numeric_limits<float>::min() ? 1.0F / step : 0.0F;
  for (size_t j = 0; j < d.size(); ++j) {
    const float rounded = (d[j] * inverse + kRounder) - kRounder;
    q[j] = static_cast<int8_t>(std::clamp(rounded, -127.0F, 127.0F));
  }
  return step;
}

}  // namespace

Result<EncodedWeight> EncodeByteRows(ThreadPool& pool, const WeightPair& pair) {
  const size_t d_in = MatrixCols(pair.fine_tune);
  DF_ASSIGN_OR_RETURN(std::vector<int32_t> changed, ChangedRows(pool, pair));
  EncodedWeight encoded = UnchangedWeight(MatrixRows(pair.fine_tune), d_in);
  if (changed.empty()) return encoded;
  const size_t k = changed.size();
  Buffer<uint8_t>& values = encoded.owned.emplace_back(k * d_in);
  Buffer<uint8_t> steps(k * sizeof(float));
  auto* step = reinterpret_cast<float*>(steps.data());
  {
    const LinearDelta nothing = encoded.delta;
    const Residual difference(pair, nothing);
    Mat<float> row_of_thread(pool.n_threads(), d_in);
    pool.ParallelFor(k, RowGrain(d_in), [&](size_t begin, size_t end, size_t thread) {
      const std::span<float> d = row_of_thread.view().RowSpan(thread);
      for (size_t i = begin; i < end; ++i) {
        difference.ReadDifference(static_cast<size_t>(changed[i]), d);
        step[i] = Quantize(d, reinterpret_cast<int8_t*>(values.data()) + i * d_in);
      }
    });
  }
  encoded.delta.byte_rows = ByteRows{.index = std::move(changed),
                                     .values = {DType::kI8, Shape{k, d_in}, values.span()},
                                     .step = {DType::kF32, Shape{k}, steps.span()}};
  encoded.owned.push_back(std::move(steps));
  encoded.quality = MeasureQuality(pool, pair, encoded.delta);
  return encoded;
}

}  // namespace df
