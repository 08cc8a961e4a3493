// Back from the code: rows of W = base + D^ in f32, for materialize, verify and tests. (Serving never does this.)
#ifndef DELTAFOLD_CODEC_DECODE_H_
#define DELTAFOLD_CODEC_DECODE_H_

#include <vector>

#include "codec/codec.h"
#include "tensor/mat.h"

namespace df {

// One weight of a variant, decoded row by row. Immutable after construction; thread-safe. Looks at `base` and `delta`,
// which must outlive it. f32 copies of column scales and low-rank A are held.
class RowDecoder {
 public:
  // base [base rows, d_in] (empty delta parts: its rows unchanged). The delta is consistent: format/ and codec/ see to
  // it.
  RowDecoder(const TensorView& base, const LinearDelta& delta);

  size_t d_out() const { return delta_.d_out; }
  size_t d_in() const { return delta_.d_in; }
  // out [d_in] = row `row` of W, each entry (base + ((d_1 + d_2) + ...)) in f32, d the parts of planes, byte rows and
  // low ranks in order. Rows listed in `rows` are those values and low ranks; rows the base lacks start from 0. With
  // `magnitude` the row is then scaled to that length.
  void Decode(size_t row, std::span<float> out) const;

 private:
  void AddPlanes(size_t row, std::span<float> sum) const;
  void AddLowRanks(size_t row, std::span<float> sum) const;
  void AddByteRow(size_t row, std::span<float> sum) const;
  bool ReadReplaced(size_t row, std::span<float> out) const;

  const TensorView& base_;
  const LinearDelta& delta_;
  std::vector<std::vector<float>> col_scales_;  // a plane each; empty = ones
  std::vector<Mat<float>> a_;                   // [r, d_in] a low-rank part each
};

}  // namespace df

#endif  // DELTAFOLD_CODEC_DECODE_H_
