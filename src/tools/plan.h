// What a family of fine-tunes takes: memory, room for the KV cache, time to load, bytes that a decoded token reads. By
// arithmetic on the shape of a model: no weight is read. Every figure carries its formula. Called by `deltafold plan`.
#ifndef DELTAFOLD_TOOLS_PLAN_H_
#define DELTAFOLD_TOOLS_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "base/json_fwd.h"
#include "base/status.h"
#include "format/model_config.h"

namespace df::tools {

// Where a delta is loaded from.
struct Medium {
  std::string name;
  double bytes_per_second = 0;
  std::string source;  // where the speed is from
};
// Sequential reads as their makers state them, and what a load from the page cache was measured at (docs/store.md).
std::vector<Medium> DefaultMedia();

struct PlanOptions {
  uint64_t n_variants = 14;
  std::vector<std::string> codes = {"scalar", "row", "rank1", "planes2", "lowrank:16", "auto"};
  bool is_fitted = true;                         // scales are fitted to a text, as compress does unless told otherwise
  std::string embeddings = "raw";                // code of embedding and head; raw: the fine-tune changed every row
  uint64_t memory_bytes = 0;                     // 0: not asked what fits
  uint64_t reserve_bytes = uint64_t{512} << 20;  // program, tokenizers, activations
  uint64_t context_tokens = 4096;                // of a sequence
  uint64_t n_sequences = 1;                      // whose KV cache must fit
  DType kv_dtype = DType::kBf16;                 // kBf16 or kF32
  std::vector<Medium> media = DefaultMedia();
};

enum class PlanUnit { kBytes, kTokens, kCount, kSeconds, kRatio, kBits };

struct Figure {
  std::string name;  // "delta_bytes"
  double value = 0;  // whole bytes below 2^53 are exact
  PlanUnit unit = PlanUnit::kBytes;
  std::string formula;  // with the numbers of this very figure
};

// One code, or one way to keep full copies.
struct PlanRow {
  std::string name;
  std::vector<Figure> figures;

  // Null when there is none of that name.
  const Figure* FindOrNull(const std::string& figure) const;
};

struct Plan {
  PlanRow model;                // what holds whatever the code
  std::vector<PlanRow> codes;   // base and n_variants deltas
  std::vector<PlanRow> copies;  // n_variants models of their own: bf16, 8-bit, 4-bit
};

// The only error is kInvalidArgument: an unknown code, a number out of range (named).
Result<Plan> MakePlan(const ModelConfig& config, const PlanOptions& options);

Json ToJson(const Plan& plan);
const char* UnitName(PlanUnit unit);

}  // namespace df::tools

#endif  // DELTAFOLD_TOOLS_PLAN_H_
