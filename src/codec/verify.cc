#include "codec/verify.h"

#include "codec/bound_variant.h"
#include "codec/decode.h"
#include "codec/row_ops.h"

namespace df {
namespace {

// The fine-tune's tensor for a slot of the variant: its embedding where the head is tied to it.
Result<const StoredTensor*> FineTuneTensor(const Checkpoint& fine_tune, bool fine_tune_tied,
                                           const BoundWeight& weight) {
  const bool tied_head = weight.slot.kind == SlotKind::kHead && fine_tune_tied;
  const StoredTensor* stored = fine_tune.FindOrNull(tied_head ? kEmbeddingName : weight.slot.name);
  const size_t d_out = weight.change.d_out, d_in = weight.change.d_in;
  if (stored == nullptr || MatrixRows(stored->view) != d_out || MatrixCols(stored->view) != d_in) {
    return FailedPrecondition("tensor " + weight.slot.name + " is " +
                              (stored == nullptr ? "missing" : ToString(stored->view.shape)) +
                              " in the fine-tune, the delta makes it " + ToString(Shape{d_out, d_in}));
  }
  return stored;
}

// Difference of the fine-tune to what the variant starts from; rows the base lacks start from 0.
Quality Measure(ThreadPool& pool, const BoundWeight& weight, const TensorView& fine_tune) {
  const RowDecoder decoder(weight.base->view, weight.change);
  const size_t d_in = decoder.d_in();
  Buffer<ErrorSums> rows(decoder.d_out());
  Mat<float> buffers(3 * pool.n_threads(), d_in);
  pool.ParallelFor(decoder.d_out(), RowGrain(d_in), [&](size_t begin, size_t end, size_t thread) {
    const std::span<float> w = buffers.view().RowSpan(3 * thread), d = buffers.view().RowSpan(3 * thread + 1);
    const std::span<float> decoded = buffers.view().RowSpan(3 * thread + 2);
    for (size_t row = begin; row < end; ++row) {
      row_ops::ReadRow(fine_tune, row, w);
      decoder.Decode(row, decoded);
      if (row < MatrixRows(weight.base->view)) {
        row_ops::ReadRow(weight.base->view, row, d);
      } else {
        std::fill(d.begin(), d.end(), 0.0F);
      }
      for (size_t j = 0; j < d_in; ++j) {
        d[j] = w[j] - d[j];
        decoded[j] = w[j] - decoded[j];
      }
      rows[row] = row_ops::SumErrors(d, decoded);
    }
  });
  return QualityOfRows(rows.span(), MatrixRows(weight.base->view));
}

std::optional<double> MeanError(const std::vector<VerifiedWeight>& weights) {
  double sum = 0, n = 0;
  for (const VerifiedWeight& weight : weights) {
    if (weight.kind != SlotKind::kMatrix || !weight.quality || weight.bytes == 0) continue;
    sum += weight.quality->relative_frobenius;
    n += 1;
  }
  return n > 0 ? std::optional<double>(sum / n) : std::nullopt;
}

Status CheckHeads(const BoundVariant& variant, bool fine_tune_tied) {
  if (!variant.tied || fine_tune_tied) return Status::Ok();
  return FailedPrecondition("the fine-tune has a head of its own, the delta ties the head to the embedding");
}

}  // namespace

Result<VerifyReport> Verify(ThreadPool& pool, const Checkpoint& base, const std::string& directory,
                            const Checkpoint* fine_tune,
                            const std::function<bool(const StreamProgress&)>& on_progress) {
  DF_ASSIGN_OR_RETURN(const BoundVariant variant, BindVariant(base, directory));
  VerifyReport report;
  if (variant.delta != nullptr) {
    DF_RETURN_IF_ERROR(variant.delta->VerifyDigest());
    report.base_fingerprint = variant.delta->metadata().base_fingerprint;
    report.content_digest = variant.delta->metadata().content_digest;
  } else {
    DF_ASSIGN_OR_RETURN(report.content_digest, variant.adapter->Digest());
  }
  BoundCheckpoint bound;
  if (fine_tune != nullptr) {
    DF_ASSIGN_OR_RETURN(bound, Bind(*fine_tune));
    DF_RETURN_IF_ERROR(CheckHeads(variant, bound.tied));
  }
  StreamProgress progress{.n_tensors = variant.weights.size()};
  for (const BoundWeight& weight : variant.weights) progress.n_bytes += weight.base->view.bytes.size();
  for (const BoundWeight& weight : variant.weights) {
    if (on_progress && !on_progress(progress)) return Cancelled("stopped before " + weight.slot.name);
    VerifiedWeight verified{.name = weight.slot.name,
                            .kind = weight.slot.kind,
                            .code = CodeName(weight.change),
                            .shape = Shape{weight.change.d_out, weight.change.d_in},
                            .bytes = StoredBytes(weight.change),
                            .quality = std::nullopt};
    if (weight.slot.IsVector()) verified.shape = Shape{weight.slot.d_out};
    if (fine_tune != nullptr) {
      DF_ASSIGN_OR_RETURN(const StoredTensor* const tensor, FineTuneTensor(*fine_tune, bound.tied, weight));
      verified.quality = Measure(pool, weight, tensor->view);
      tensor->file->DropPages(tensor->view.bytes);
      weight.base->file->DropPages(weight.base->view.bytes);
    }
    report.weights.push_back(std::move(verified));
    ++progress.done_tensors;
    progress.done_bytes += weight.base->view.bytes.size();
  }
  report.mean_relative_frobenius = MeanError(report.weights);
  DF_RETURN_IF_ERROR(base.CheckIntact());
  if (variant.delta != nullptr) DF_RETURN_IF_ERROR(variant.delta->CheckIntact());
  return report;
}

}  // namespace df
