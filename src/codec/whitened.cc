#include "codec/whitened.h"

#include <algorithm>
#include <cmath>

#include "codec/exact.h"
#include "codec/low_rank.h"
#include "codec/output_target.h"
#include "linalg/factor.h"

namespace df {

Result<WhitenedTarget> Whiten(ThreadPool& pool, const WeightPair& pair, const LinearDelta& others,
                              const WeightInputs& inputs) {
  const size_t d_out = others.d_out, d_in = others.d_in;
  WhitenedTarget whitened{Mat<float>(d_out, d_in), Mat<float>(d_in, d_in)};
  for (size_t row = 0; row < d_in; ++row) std::copy_n(inputs.moment.Row(row), d_in, whitened.lower.Row(row));
  DF_RETURN_IF_ERROR(linalg::Cholesky(whitened.lower.view()));
  const OutputTarget output(pair, others, inputs);
  Mat<float> memory(pool.n_threads() * kBlockRows, d_in);
  ForEachBlock(pool, d_out, [&](size_t first, size_t n, size_t thread) {
    const MatView<float> rows = whitened.target.Rows(first, first + n);
    output.Read(first, memory.Rows(thread * kBlockRows, thread * kBlockRows + n), rows);
    linalg::SolveTransposedLower(whitened.lower.view(), rows);
  });
  return whitened;
}

Status AddWhitenedLowRank(ThreadPool& pool, const WeightPair& pair, const WeightInputs& inputs, size_t rank,
                          EncodedWeight& encoded) {
  DF_CHECK(encoded.delta.low_rank.empty() && rank > 0);
  const size_t d_out = encoded.delta.d_out, d_in = encoded.delta.d_in;
  const size_t kept = std::min({rank, d_out, d_in, kMaxCodedRank});
  DF_ASSIGN_OR_RETURN(WhitenedTarget whitened, Whiten(pool, pair, encoded.delta, inputs));
  DF_ASSIGN_OR_RETURN(linalg::TruncatedSvd found,
                      linalg::RandomizedSvd(pool, linalg::RowsOf(whitened.target.view()), {.rank = kept}));
  linalg::Svd& svd = found.svd;
  linalg::SolveLower(whitened.lower.view(), svd.vt.view());
  // Of length 1 again, the length within the value: both factors then share it.
  for (size_t k = 0; k < kept; ++k) {
    const double length = std::sqrt(Dot(svd.vt.view().RowSpan(k), svd.vt.view().RowSpan(k)));
    if (!(length > 0)) continue;
    for (float& value : svd.vt.view().RowSpan(k)) value = static_cast<float>(double{value} / length);
    svd.s[k] = static_cast<float>(double{svd.s[k]} * length);
  }
  AddFactors(svd, kept, NarrowType(svd, kept, d_out, d_in), encoded);
  encoded.quality = MeasureQuality(pool, pair, encoded.delta);
  return Status::Ok();
}

Result<EncodedWeight> EncodeWhitenedLowRank(ThreadPool& pool, const WeightPair& pair, const WeightInputs& inputs,
                                            size_t rank) {
  EncodedWeight encoded = UnchangedWeight(MatrixRows(pair.fine_tune), MatrixCols(pair.fine_tune));
  DF_ASSIGN_OR_RETURN(const std::vector<int32_t> changed, ChangedRows(pool, pair));
  if (changed.empty()) return encoded;
  DF_RETURN_IF_ERROR(AddWhitenedLowRank(pool, pair, inputs, rank, encoded));
  return encoded;
}

}  // namespace df
