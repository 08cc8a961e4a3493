// What one weight takes under a code of `deltafold compress`, on disk and packed in memory: by shapes alone, nothing is
// encoded. Called by plan.h.
#ifndef DELTAFOLD_TOOLS_PLAN_CODE_H_
#define DELTAFOLD_TOOLS_PLAN_CODE_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace df::tools {

enum class PlannedKind {
  kSame,     // the base's: nothing is stored
  kRaw,      // as in the fine-tune
  kSigns,    // planes of signs and scales, with or without a low rank behind them
  kLowRank,  // B A alone
  kBytes,    // every row in bytes
  kBits,     // so many bits for each weight of the model, whatever they are spent on
};

// Row and column scales that are fitted to a text are BF16 (codec/calibrate.h), others F32.
inline constexpr uint64_t kFittedScaleBytes = 2, kPlainScaleBytes = 4;

struct PlannedCode {
  std::string name;  // as given
  PlannedKind kind = PlannedKind::kSigns;
  size_t n_planes = 0;
  bool row_scale = false, col_scale = false;
  uint64_t scale_bytes = kFittedScaleBytes;  // of a row's or a column's
  size_t rank = 0;
  double bits = 0;          // of kBits
  bool is_adapter = false;  // only the layers' matrices change
};

// scalar, row, column, rank1, planes2 to planes8, lowrank:R, any of the signs "+lowrank:R", int8, raw (or exact: every
// row has changed), same, lora:R (an adapter on all matrices), auto (1.35 bits a weight, its default), Xbpw. The only
// error is kInvalidArgument, which lists these. `scale_bytes`: one of the two above.
Result<PlannedCode> ParsePlannedCode(std::string_view name, uint64_t scale_bytes = kFittedScaleBytes);

struct WeightShape {
  uint64_t d_out = 0;
  uint64_t d_in = 0;
  uint64_t element_bytes = 2;  // of the fine-tune
};

// Bytes of the tensors in the delta's file.
uint64_t StoredBytes(const PlannedCode& code, const WeightShape& shape);
// Bytes of the same once packed: tiles of 32 rows, f32 scales (kernels/packed.h).
uint64_t ResidentBytes(const PlannedCode& code, const WeightShape& shape);
// A whole matrix in tiles.
uint64_t PackedMatrixBytes(const WeightShape& shape);

// StoredBytes of one weight in words: "d_out * ceil(d_in / 8) + 2 * d_out".
std::string StoredFormula(const PlannedCode& code);

}  // namespace df::tools

#endif  // DELTAFOLD_TOOLS_PLAN_CODE_H_
