// The waist: what makes a variant of one linear layer, in the canonical (stored) form. codec/ makes it, format/ stores
// and reads it, kernels/ packs it for the machine. All members are views; whoever made them keeps the bytes alive.
//
//   y = gain_row * ( (raw or base) x + sum_p s_p diag(row_p) S_p diag(col_p) x + sum_q scale_q B_q A_q x + T x ) + bias
//
// with S_p in {-1,+1}^[d_out, d_in], and T the rows of bytes: T_i = step_k q_k for i = index_k, else 0. Rows in `rows`
// stand for (raw or base), all planes and T. DoRA stores `magnitude` in place of a gain: gain_row = magnitude / || row
// of the sum in brackets ||_2, which takes the base to tell. An empty LinearDelta is the base's layer, bit for bit.
#ifndef DELTAFOLD_TENSOR_LINEAR_DELTA_H_
#define DELTAFOLD_TENSOR_LINEAR_DELTA_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "tensor/tensor_view.h"

namespace df {

// Bytes of one row of canonical sign bits: bit i of byte b is column 8b+i, LSB first, 1 = +1, padding bits 0.
constexpr size_t SignRowBytes(size_t d_in) { return (d_in + 7) / 8; }

struct SignPlane {
  Bytes bits = {};                           // [d_out, ceil(d_in/8)]
  float scale = 1.0F;                        // s
  std::optional<TensorView> row_scale = {};  // [d_out] F32 or BF16; absent = ones
  std::optional<TensorView> col_scale = {};  // [d_in]  F32 or BF16; absent = ones
};

struct LowRank {
  TensorView a;        // [r, d_in]  F32, BF16 or F16
  TensorView b;        // [d_out, r] F32, BF16 or F16
  float scale = 1.0F;  // alpha / r, or alpha / sqrt(r)
};

struct ReplacedRows {
  std::vector<int32_t> index = {};  // [k] strictly increasing, each < d_out of the variant
  TensorView values;                // [k, d_in] F32, BF16 or F16
};

// Rows whose difference to the base (to 0 where the base has no such row) is stored in bytes.
struct ByteRows {
  std::vector<int32_t> index = {};  // [k] strictly increasing, each < d_out of the variant
  TensorView values;                // [k, d_in] I8
  TensorView step;                  // [k] F32
};

struct LinearDelta {
  size_t d_out = 0;  // of the variant: differs from the base's for a grown or shrunk vocabulary only
  size_t d_in = 0;
  std::vector<SignPlane> planes = {};
  std::vector<LowRank> low_rank = {};
  std::optional<ReplacedRows> rows = {};
  std::optional<ByteRows> byte_rows = {};
  std::optional<TensorView> raw = {};       // [d_out, d_in], replaces the base's weight
  std::optional<TensorView> gain_row = {};  // [d_out] F32
  // [d_out] F32, BF16 or F16; whoever packs or decodes the delta makes the gain of it. Never beside gain_row.
  std::optional<TensorView> magnitude = {};
  std::optional<TensorView> bias = {};  // [d_out], replaces the base's bias

  bool IsBase() const {
    return planes.empty() && low_rank.empty() && !rows && !byte_rows && !raw && !gain_row && !magnitude && !bias;
  }
};

}  // namespace df

#endif  // DELTAFOLD_TENSOR_LINEAR_DELTA_H_
