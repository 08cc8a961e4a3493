// A delta as a PEFT adapter, for programs that read only those: low ranks become lora_A and lora_B, what is stored in
// full becomes a saved module. Signs and rows in bytes have no such form; they are approximated by a low rank where
// that is asked for, and the error is told.
#ifndef DELTAFOLD_CODEC_EXPORT_PEFT_H_
#define DELTAFOLD_CODEC_EXPORT_PEFT_H_

#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "format/checkpoint.h"

namespace df {

struct ExportOptions {
  std::string base_name = {};  // base_model_name_or_path
  size_t rank = 0;             // of matrices that have no low rank of their own; 0: such are refused
  bool replace = false;        // an existing directory
  std::string origin = {};     // a section for the card on how the fine-tune was made
};

struct ApproximatedWeight {
  std::string name;
  double relative_error = 0;  // |D^ - B A| / |D^|
};

struct ExportReport {
  size_t n_factors = 0;  // modules with lora_A and lora_B
  size_t n_saved = 0;    // modules saved in full
  size_t largest_rank = 0;
  uint64_t bytes = 0;
  std::vector<ApproximatedWeight> approximated;
};

// Writes `target` (adapter_config.json, adapter_model.safetensors, README.md), which appears whole or not at all, from
// the delta at `delta_directory`. Factors are stored as they are, with a scale of 1; embedding and head, where they
// changed at all, in full. With more than 256 groups of equal rank and projection the ranks are filled up with zeros to
// multiples of 8. The only errors are those of BindVariant, kFailedPrecondition (a matrix without low rank and no
// `rank`; nothing of low rank at all; the target exists), those of EncodeLowRank and kIo.
Result<ExportReport> ExportPeft(ThreadPool& pool, const Checkpoint& base, const std::string& delta_directory,
                                const std::string& target, const ExportOptions& options);

}  // namespace df

#endif  // DELTAFOLD_CODEC_EXPORT_PEFT_H_
