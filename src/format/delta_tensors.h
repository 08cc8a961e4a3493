// The tensors of a delta: names to parts of weights, and the checks that make them safe to serve. Works on views in
// memory, wherever they come from.
#ifndef DELTAFOLD_FORMAT_DELTA_TENSORS_H_
#define DELTAFOLD_FORMAT_DELTA_TENSORS_H_

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "format/checkpoint.h"
#include "format/delta_dir.h"
#include "tensor/linear_delta.h"

namespace df::internal {

using TensorMap = std::map<std::string, StoredTensor, std::less<>>;

inline constexpr std::string_view kFileDigestPrefix = "file_digest:";

// The stored parts of weight W, by suffix; null when absent.
struct WeightParts {
  const TensorView* sign = nullptr;        // W.sign        U8 [planes, d_out, ceil(d_in/8)]
  const TensorView* scale = nullptr;       // W.scale       F32 [planes]
  const TensorView* scale_row = nullptr;   // W.scale_row   F32 or BF16 [planes, d_out]
  const TensorView* scale_col = nullptr;   // W.scale_col   F32 or BF16 [planes, d_in]
  const TensorView* lora_a = nullptr;      // W.lora_A      float [r, d_in]
  const TensorView* lora_b = nullptr;      // W.lora_B      float [d_out, r]
  const TensorView* rows_index = nullptr;  // W.rows_index  I32 [k]
  const TensorView* rows = nullptr;        // W.rows        float [k, d_in]
  const TensorView* rows_q = nullptr;      // W.rows_q      I8 [k, d_in], version 2
  const TensorView* rows_step = nullptr;   // W.rows_step   F32 [k], version 2
  const TensorView* raw = nullptr;         // W             float, replacement
};

// The version that first had the parts which `delta` needs.
int FormatVersionOf(const LinearDelta& delta);
inline constexpr int kNewestFormatVersion = 2;

// __metadata__ of a delta file: every key is present and sound, the version is known.
Result<DeltaMetadata> ReadDeltaMetadata(const std::map<std::string, std::string>& metadata);

// A plain file name that may stand beside a delta: no '/', no leading dot, no control characters, 1 to 255 bytes.
bool IsPlainFileName(std::string_view name);
// A plain file name, or one of the further chat templates ("additional_chat_templates/NAME.jinja").
bool IsSideFileName(std::string_view name);

// Weight names, sorted, after checking every tensor: known suffix, complete groups, dtypes, ranks, shapes that agree,
// at most `max_dim` scales a plane (the variant's longest side: a sparse file may claim any), increasing row indices.
// The only errors are kCorrupt and kUnsupported (a suffix unknown to `format_version`).
Result<std::vector<std::string>> CheckDeltaTensors(const TensorMap& tensors, int format_version,
                                                   size_t max_dim = SIZE_MAX);
// kCorrupt where a scale or step is not finite; other tensors pass. CheckDeltaTensors has passed.
Status CheckScale(std::string_view name, const TensorView& view);
Status CheckScales(const TensorMap& tensors);

WeightParts PartsOf(const TensorMap& tensors, std::string_view weight);

// As DeltaDirectory::Linear and Vector; CheckDeltaTensors has passed.
Result<LinearDelta> LinearOf(const TensorMap& tensors, std::string_view weight, ShapeOfWeight base, size_t d_out);
Result<std::optional<TensorView>> VectorOf(const TensorMap& tensors, std::string_view name, size_t size);

// XXH3-128 of all tensors in name order.
std::string ContentDigest(const TensorMap& tensors);

}  // namespace df::internal

#endif  // DELTAFOLD_FORMAT_DELTA_TENSORS_H_
