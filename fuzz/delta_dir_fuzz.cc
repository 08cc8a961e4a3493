// Any bytes as the tensor file of a delta directory: what passes the checks can be taken apart and read in full.
#include "base/check.h"
#include "format/delta_tensors.h"
#include "format/safetensors.h"

namespace {

using df::internal::TensorMap;

float sink;  // keeps the reads

void ReadAll(const df::LinearDelta& delta) {
  for (const df::SignPlane& plane : delta.planes) {
    DF_CHECK(plane.bits.size() == delta.d_out * df::SignRowBytes(delta.d_in));
    for (const uint8_t byte : plane.bits) sink += byte;
    if (plane.row_scale) DF_CHECK(plane.row_scale->elements() == delta.d_out);
    if (plane.col_scale) DF_CHECK(plane.col_scale->elements() == delta.d_in);
  }
  for (const df::LowRank& pair : delta.low_rank) {
    DF_CHECK(pair.a.shape[1] == delta.d_in && pair.b.shape[0] == delta.d_out && pair.a.shape[0] == pair.b.shape[1]);
    for (size_t i = 0; i < pair.a.elements(); ++i) sink += df::FloatAt(pair.a, i);
  }
  if (delta.rows) {
    DF_CHECK(delta.rows->values.elements() == delta.rows->index.size() * delta.d_in);
    for (const int32_t row : delta.rows->index) DF_CHECK(row >= 0 && static_cast<size_t>(row) < delta.d_out);
  }
  if (delta.byte_rows) {
    const df::ByteRows& rows = *delta.byte_rows;
    DF_CHECK(rows.values.dtype == df::DType::kI8 && rows.values.elements() == rows.index.size() * delta.d_in);
    DF_CHECK(rows.step.elements() == rows.index.size() && !delta.rows);
    for (const int32_t row : rows.index) DF_CHECK(row >= 0 && static_cast<size_t>(row) < delta.d_out);
    for (const uint8_t byte : rows.values.bytes) sink += byte;
  }
  if (delta.raw) DF_CHECK(delta.raw->elements() == delta.d_out * delta.d_in);
}

// Shapes near those that the parts claim, so that both answers are seen.
void TakeApart(const TensorMap& tensors, const std::string& weight) {
  const df::internal::WeightParts parts = df::internal::PartsOf(tensors, weight);
  std::vector<size_t> outs = {0, 3}, ins = {0, 10};
  for (const df::TensorView* part : {parts.raw, parts.sign, parts.scale_row, parts.scale_col, parts.lora_a,
                                     parts.lora_b, parts.rows, parts.rows_q}) {
    if (part == nullptr || part->shape.rank() == 0) continue;
    const size_t last = part->shape[part->shape.rank() - 1];
    outs.insert(outs.end(), {part->shape[0], part->shape.rank() > 1 ? part->shape[1] : last});
    ins.push_back(last);
    if (last < (size_t{1} << 60)) ins.push_back(8 * last);
  }
  for (const size_t d_out : outs) {
    for (const size_t d_in : ins) {
      for (const size_t base_rows : {d_out, d_out > 0 ? d_out - 1 : 0}) {
        const auto delta = df::internal::LinearOf(tensors, weight, {base_rows, d_in}, d_out);
        if (delta.ok()) ReadAll(*delta);
      }
    }
    static_cast<void>(df::internal::VectorOf(tensors, weight, d_out).ok());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto header = df::ParseSafetensors({data, size});
  if (!header.ok()) return 0;
  const auto metadata = df::internal::ReadDeltaMetadata(header->metadata);
  const int format_version = metadata.ok() ? metadata->format_version : df::internal::kNewestFormatVersion;
  TensorMap tensors;
  for (const df::NamedTensor& tensor : header->tensors)
    tensors.emplace(tensor.name, df::StoredTensor{tensor.view, nullptr});
  const auto weights = df::internal::CheckDeltaTensors(tensors, format_version);
  if (!weights.ok()) return 0;
  if (!df::internal::CheckScales(tensors).ok()) return 0;
  for (const std::string& weight : *weights) TakeApart(tensors, weight);
  DF_CHECK(df::internal::ContentDigest(tensors).size() == 32);
  return 0;
}
