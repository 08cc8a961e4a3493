// A whole model through the engine: what variants cost in time to first token, in time a token, and in memory.
#ifndef DELTAFOLD_TOOLS_BENCH_MODEL_H_
#define DELTAFOLD_TOOLS_BENCH_MODEL_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json_fwd.h"
#include "model/weights.h"
#include "tools/machine.h"
#include "tools/statistics.h"
#include "tools/svg_plot.h"

namespace df::tools {

inline constexpr size_t kPromisePromptTokens = 512;

struct ModelBenchOptions {
  size_t n_threads = 0;                                // 0 = UsableCpus()
  KernelOptions kernels = {.batch_invariant = false};  // as programs choose by default
  size_t n_variants = 14;                              // made-up deltas beside the base
  std::vector<size_t> prompt_tokens = {16, 64, 256, 512, 1024, 2048};
  std::vector<size_t> batches = {1, 2, 4, 8, 14, 16};
  size_t table_prompt_tokens = 64;  // of the requests behind the table of variants
  size_t table_rounds = 8;
  size_t decode_rounds = 10;
  size_t decode_tokens = 5;     // of a sequence a round
  double prompt_budget_s = 18;  // for each prompt length: as many pairs as fit, at least one, at most 12
  size_t promise_pairs = 5;     // of the prompt length that promises are about, even where they do not fit
  double max_drift = 0.1;       // of the multiply-add peak between start and end, as in bench kernels
  std::function<void(const std::string& what)> on_progress = {};  // may be empty
};

// Fewer and smaller measurements, for an impression; lengths and batches that differ from the usual ones stay.
ModelBenchOptions QuickModelBench(ModelBenchOptions options);

// A ratio of times, or of reading as many bytes to a time: a sample a round, both of its times measured in that round.
struct PairedRatio {
  explicit PairedRatio(std::vector<double> of_rounds = {1.0});  // at least one
  std::vector<double> samples;
  double value = 0;  // their median
  Interval bounds;   // 95 % each side
};

// One line of the table of variants: requests of `table_prompt_tokens`, base and variants in turn.
struct VariantLine {
  std::string name;  // "base", "variant 1" ...
  double p50_ttft_ms = 0, p99_ttft_ms = 0;
  double ratio = 0;  // median of the ratios to the base in the same round
  size_t n_requests = 0;
};

// One request alone, base against a variant.
struct PromptLine {
  size_t n_tokens = 0, n_pairs = 0;
  double base_ttft_ms = 0, variant_ttft_ms = 0;
  double read_bytes_per_second = 0;                // median of what was read behind the requests
  double base_token_ms = 0, variant_token_ms = 0;  // after the first one, with the prompt behind it
  PairedRatio ttft_ratio = PairedRatio(), token_ratio = PairedRatio();
  // Of those steps; absent where no batch of one row told what a step reads.
  std::optional<PairedRatio> base_bandwidth_share = {}, variant_bandwidth_share = {};
};

// A batch of decoding sequences: all of the base, all of one variant, or each of its own variant.
struct BatchLine {
  size_t n_rows = 0;
  double base_step_ms = 0, one_step_ms = 0;
  std::optional<double> distinct_step_ms = {};  // as far as there are variants
  double read_bytes_per_second = 0;             // median of what the rounds read
  PairedRatio one_ratio = PairedRatio();
  std::optional<PairedRatio> distinct_ratio = {};        // to the base
  std::optional<PairedRatio> distinct_bound_ratio = {};  // to max(base, bytes of base and signs at read bandwidth)
  PairedRatio base_bandwidth_share = PairedRatio();
  std::optional<PairedRatio> distinct_bandwidth_share = {};
};

// What issue and README promise for a model of 0.6B shape.
struct ModelPromise {
  std::string name;
  PairedRatio ratio = PairedRatio();
  double target = 0;
  bool higher_is_better = false;
  // By the bound of the median on the bad side.
  bool holds() const { return higher_is_better ? ratio.bounds.low >= target : ratio.bounds.high <= target; }
};

struct ModelBenchReport {
  std::string shape = {}, vector_target = {}, kv_dtype = {}, prefill_dtype = {};
  size_t n_threads = 0, n_variants = 0;
  Machine before = {}, after = {};
  double drift = 0;      // of the limits between before and after
  bool is_void = false;  // the multiply-add peak drifted further than allowed: no figure of this run counts
  uint64_t base_bytes = 0, variant_bytes = 0, copies_bytes = 0, kv_bytes = 0, rss_bytes = 0;  // variant: all together
  uint64_t rss_file_bytes = 0;  // those of rss_bytes that are pages of files: with mapped weights most
  std::vector<VariantLine> variants = {};
  std::vector<PromptLine> prompts = {};
  std::vector<BatchLine> batches = {};
};

// The only errors are kInvalidArgument (an option out of range), kFailedPrecondition (not enough memory; both figures
// are named) and the engine's.
Result<ModelBenchReport> RunModelBench(const std::string& shape, std::shared_ptr<const BaseWeights> base,
                                       const ModelBenchOptions& options);

// A base with made-up weights, or kFailedPrecondition when it and its variants do not fit into memory.
Result<std::shared_ptr<const BaseWeights>> MakeBenchBase(const ModelConfig& config, size_t n_variants);

// Those that the report has figures for.
std::vector<ModelPromise> Promises(const ModelBenchReport& report);
Json ToJson(const ModelBenchReport& report);
// Step time over the base's against the number of variants, and tokens a second against the batch.
std::vector<Plot> Plots(const ModelBenchReport& report);

}  // namespace df::tools

#endif  // DELTAFOLD_TOOLS_BENCH_MODEL_H_
