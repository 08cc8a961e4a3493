// codec/: what a fine-tune changed, written small. Input: base and fine-tune checkpoints (mapped, streamed tensor by
// tensor); output: a LinearDelta per weight, a delta directory, or back a full checkpoint. Called by the commands,
// offline.
//
// codec.h is what all codes share. The codes: sign.h (one bit a weight and scales), low_rank.h, byte_rows.h, exact.h
// (absent, rows, raw); code.h names them all. To add one: a function WeightPair -> EncodedWeight beside them, its
// decoding in decode.cc and residual.cc, its name and call in code.cc.
#ifndef DELTAFOLD_CODEC_CODEC_H_
#define DELTAFOLD_CODEC_CODEC_H_

#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "tensor/linear_delta.h"
#include "tensor/mat.h"

namespace df {

// One weight as stored in both checkpoints: F32, BF16 or F16 each, equal d_in. A vector is a matrix of one row. Only
// the vocabulary's weights may differ in rows.
struct WeightPair {
  std::string name;      // for messages
  TensorView base;       // [base rows, d_in]
  TensorView fine_tune;  // [d_out, d_in]
};

size_t MatrixRows(const TensorView& tensor);  // 1 for a vector
size_t MatrixCols(const TensorView& tensor);

// Rows that are worth a thread's waking: 65536 elements take some 30 us, several times the 5 us of a wake.
constexpr size_t RowGrain(size_t d_in) { return d_in >= 65536 ? 1 : 65536 / (d_in > 0 ? d_in : 1); }

// How far the decoded difference D^ is from D = W_ft - W_base.
struct Quality {
  double relative_frobenius = 0;  // |D - D^| / |D|; of D = 0 it is 0 when D^ = 0, else infinite
  double cosine = 1;              // <D, D^> / (|D| |D^|); of D = 0 it is 1 when D^ = 0, else 0
  double max_abs_error = 0;       // max |D - D^|
};

// A delta and the memory it looks at; whatever `owned` does not hold lies in the fine-tune's mapping.
struct EncodedWeight {
  LinearDelta delta;
  std::vector<Buffer<uint8_t>> owned;
  Quality quality;
};

// The unchanged weight.
EncodedWeight UnchangedWeight(size_t d_out, size_t d_in);

// Sums that give a Quality, each over all elements: |D|^2, <D, D - D^>, |D - D^|^2 and the largest |D - D^|.
struct ErrorSums {
  double difference = 0;
  double cross = 0;
  double error = 0;
  double max_abs_error = 0;

  void Add(const ErrorSums& other);
  Quality ToQuality() const;
};

// Of a weight by the sums of its rows, [d_out]. Rows from `n_base` on, which the base lacks, have the whole weight for
// their difference and would drown what the others lose: they count by themselves, and only where they lose anything;
// the worse of both stands.
Quality QualityOfRows(std::span<const ErrorSums> rows, size_t n_base);

// For tables: "sign rank-1", "2 signs row", "rows 12", "raw BF16", "same" ...
std::string CodeName(const LinearDelta& delta);
// Bytes that the parts of `delta` take on disk.
uint64_t StoredBytes(const LinearDelta& delta);

// kCorrupt naming tensor, checkpoint and position of the first NaN or infinity; Ok when there is none.
Status FindNonFinite(const WeightPair& pair);

}  // namespace df

#endif  // DELTAFOLD_CODEC_CODEC_H_
