#include "codec/exact.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/even_shares.h"
#include "codec/row_ops.h"

namespace df {
namespace {

// The largest |difference| of every row of the fine-tune; of rows that the base lacks, the largest |weight|. Not finite
// where a weight is not.
Buffer<float> RowChanges(ThreadPool& pool, const WeightPair& pair) {
  const size_t d_out = MatrixRows(pair.fine_tune), d_in = MatrixCols(pair.fine_tune);
  const size_t n_common = std::min(d_out, MatrixRows(pair.base));
  Buffer<float> changes(d_out);
  Mat<float> row_of_thread(pool.n_threads(), d_in);
  ParallelForEvenly(pool, d_out, RowGrain(d_in), [&](size_t begin, size_t end, size_t thread) {
    const std::span<float> weights = row_of_thread.view().RowSpan(thread);
    for (size_t row = begin; row < end; ++row) {
      if (row < n_common) {
        changes[row] = row_ops::LargestDifference(pair, row, d_in);
        continue;
      }
      row_ops::ReadRow(pair.fine_tune, row, weights);
      changes[row] = row_ops::MagnitudesOf(weights).largest;
    }
  });
  return changes;
}

void SetRows(const WeightPair& pair, std::vector<int32_t> index, EncodedWeight& encoded) {
  const size_t d_in = MatrixCols(pair.fine_tune);
  const size_t row_bytes = d_in * DTypeBytes(pair.fine_tune.dtype);
  Buffer<uint8_t>& values = encoded.owned.emplace_back(index.size() * row_bytes);
  for (size_t k = 0; k < index.size(); ++k) {
    std::memcpy(values.data() + k * row_bytes, pair.fine_tune.bytes.data() + static_cast<size_t>(index[k]) * row_bytes,
                row_bytes);
  }
  const Shape shape{index.size(), d_in};
  encoded.delta.rows = ReplacedRows{std::move(index), {pair.fine_tune.dtype, shape, {values.data(), values.size()}}};
}

}  // namespace

Result<std::vector<int32_t>> ChangedRows(ThreadPool& pool, const WeightPair& pair) {
  const size_t n_base = MatrixRows(pair.base);
  DF_CHECK(MatrixCols(pair.base) == MatrixCols(pair.fine_tune));
  const Buffer<float> changes = RowChanges(pool, pair);
  std::vector<int32_t> changed;
  for (size_t row = 0; row < changes.size(); ++row) {
    if (!std::isfinite(changes[row])) return FindNonFinite(pair);
    if (row >= n_base || changes[row] != 0) changed.push_back(static_cast<int32_t>(row));
  }
  return changed;
}

Result<EncodedWeight> EncodeExact(ThreadPool& pool, const WeightPair& pair, ExactCode code) {
  const size_t d_out = MatrixRows(pair.fine_tune);
  const size_t d_in = MatrixCols(pair.fine_tune);
  DF_ASSIGN_OR_RETURN(std::vector<int32_t> changed, ChangedRows(pool, pair));
  EncodedWeight encoded = UnchangedWeight(d_out, d_in);
  if (changed.empty()) return encoded;
  const size_t rows_bytes = changed.size() * (d_in * DTypeBytes(pair.fine_tune.dtype) + sizeof(int32_t));
  const bool rows_fit = code == ExactCode::kRows || rows_bytes < pair.fine_tune.bytes.size();
  if (code == ExactCode::kRaw || !rows_fit) {
    encoded.delta.raw = pair.fine_tune;
  } else {
    SetRows(pair, std::move(changed), encoded);
  }
  return encoded;
}

Status AddNewRows(const WeightPair& pair, EncodedWeight& encoded) {
  const size_t d_out = MatrixRows(pair.fine_tune);
  const size_t d_in = MatrixCols(pair.fine_tune);
  std::vector<int32_t> added;
  std::vector<float> row(d_in);
  for (size_t r = MatrixRows(pair.base); r < d_out; ++r) {
    row_ops::ReadRow(pair.fine_tune, r, row);
    if (!std::isfinite(row_ops::AbsSum(row))) return FindNonFinite(pair);
    added.push_back(static_cast<int32_t>(r));
  }
  if (!added.empty()) SetRows(pair, std::move(added), encoded);
  return Status::Ok();
}

}  // namespace df
