// --as delta and --as lora of `deltafold merge`: the merge as a full checkpoint beside the target, coded, and removed.
#ifndef DELTAFOLD_CLI_MERGE_VARIANT_H_
#define DELTAFOLD_CLI_MERGE_VARIANT_H_

#include <functional>
#include <string>

#include "base/json.h"
#include "cli/calibration.h"
#include "cli/code_arguments.h"
#include "merge/merger.h"

namespace df::cli {

struct VariantOptions {
  std::string out;
  bool as_lora = false;
  size_t lora_rank = 0;  // as_lora
  CodeArguments codes = {};
  CalibrationOptions calibration = {};
  size_t n_threads = 1;
  merge::MergerOptions merger = {};
  std::function<bool(const CompressOptions::Progress&)> on_compress = {};  // as in CompressOptions
  std::function<bool()> go_on = {};                                        // asked while a calibration text is written
};

struct VariantReport {
  Json merge;     // of merge::ToJson
  Json compress;  // of ToJson(CompressReport)
  Json adapter;   // as_lora: factors, saved, largest_rank, bytes
  uint64_t bytes = 0, full_bytes = 0;
  double mean_relative_frobenius = 0;
};

// Writes options.out, which appears whole or not at all. A run that is stopped keeps what it did, for --resume. The
// only errors are those of MergeToScratch, Compress and ExportPeft, and kFailedPrecondition (no base_model, or none
// that a delta can be of; the target exists).
Result<VariantReport> MergeToVariant(const merge::Recipe& recipe, const merge::MergeSources& sources,
                                     const VariantOptions& options);

}  // namespace df::cli

#endif  // DELTAFOLD_CLI_MERGE_VARIANT_H_
