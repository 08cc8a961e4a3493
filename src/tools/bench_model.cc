#include "tools/bench_model.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <utility>

#include "base/clock.h"
#include "engine/engine.h"
#include "engine/kv_cache.h"
#include "engine/sizing.h"
#include "kernels/prefill_dtype.h"
#include "kernels/target.h"
#include "model/kv_pool.h"
#include "tools/engine_runs.h"
#include "tools/read_gauge.h"
#include "tools/statistics.h"
#include "tools/synthetic_weights.h"

namespace df::tools {
namespace {

constexpr size_t kMaxBatch = 64;
constexpr size_t kMaxPairs = 12;
constexpr size_t kTokensAfterPrompt = 9;             // the first one and eight steps with the prompt behind them
constexpr uint64_t kSlackBytes = uint64_t{1} << 30;  // activations, the measurement of limits, the program

double Milliseconds(double seconds) { return seconds * 1e3; }

void ReadResident(ModelBenchReport& report) {
  std::ifstream statm("/proc/self/statm");
  uint64_t total_pages = 0, resident_pages = 0, file_pages = 0;
  statm >> total_pages >> resident_pages >> file_pages;
  const auto page_bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  report.rss_bytes = resident_pages * page_bytes;
  report.rss_file_bytes = file_pages * page_bytes;
}

Status CheckMemory(const std::string& what, uint64_t needed_bytes) {
  const uint64_t available = AvailableMemoryBytes();
  if (available == 0 || needed_bytes + kSlackBytes <= available) return Status::Ok();
  return FailedPrecondition(what + " would take " + std::to_string(needed_bytes + kSlackBytes) + " bytes of memory, " +
                            std::to_string(available) + " are free; take fewer variants");
}

Status Check(const ModelBenchOptions& options, const ModelConfig& config) {
  for (const size_t n : options.batches) {
    if (n == 0 || n > kMaxBatch) return InvalidArgument("a batch must be 1 to " + std::to_string(kMaxBatch));
  }
  for (const size_t n : options.prompt_tokens) {
    if (n == 0 || n + kTokensAfterPrompt > config.max_positions) {
      return InvalidArgument("a prompt of " + std::to_string(n) + " tokens does not fit the model's context of " +
                             std::to_string(config.max_positions));
    }
  }
  if (options.n_variants == 0) return InvalidArgument("there must be at least one variant");
  return Status::Ok();
}

class ModelRun {
 public:
  ModelRun(std::shared_ptr<const BaseWeights> base, const ModelBenchOptions& options, ModelBenchReport& report)
      : options_(options), report_(report), base_(std::move(base)), gauge_(report.n_threads) {}

  Status All() {
    DF_RETURN_IF_ERROR(MakeVariants());
    DF_RETURN_IF_ERROR(StartEngine());
    DF_RETURN_IF_ERROR(RunAlone(*engine_, nullptr, 16, 2).ok() ? Status::Ok() : Internal("the engine does not answer"));
    for (const size_t n : options_.batches) DF_RETURN_IF_ERROR(MeasureBatch(n));
    DF_RETURN_IF_ERROR(MeasureTable());
    for (const size_t n : options_.prompt_tokens) DF_RETURN_IF_ERROR(MeasurePrompt(n));
    ReadResident(report_);
    return Status::Ok();
  }

 private:
  void Say(const std::string& what) const {
    if (options_.on_progress) options_.on_progress(what);
  }

  Status MakeVariants() {
    Say("making " + std::to_string(options_.n_variants) + " variants");
    DF_RETURN_IF_ERROR(CheckMemory(std::to_string(options_.n_variants) + " variants",
                                   options_.n_variants * SyntheticVariantBytes(base_->config)));
    KernelContext context(report_.n_threads);
    for (size_t i = 0; i < options_.n_variants; ++i) {
      variants_.push_back(SyntheticVariant(context, *base_, 100 + i));
      report_.variant_bytes += variants_.back()->bytes;
    }
    report_.base_bytes = base_->bytes;
    report_.copies_bytes = base_->bytes * (1 + options_.n_variants);
    return Status::Ok();
  }

  // A KV cache for the longest prompt and the largest batch, no more.
  Status StartEngine() {
    const DType kv_dtype = base_->embedding.weight.dtype == DType::kBf16 ? DType::kBf16 : DType::kF32;
    const size_t longest = *std::max_element(options_.prompt_tokens.begin(), options_.prompt_tokens.end());
    const size_t max_tokens = std::max(longest, options_.table_prompt_tokens) + kTokensAfterPrompt;
    const size_t blocks = KvBlocksFor(max_tokens) + kMaxBatch * KvBlocksFor(1 + options_.decode_tokens);
    const size_t block_bytes = KvPool::BlockBytes(base_->config, kv_dtype);
    kv_token_bytes_ = static_cast<double>(block_bytes) / static_cast<double>(kernels::kKvBlockTokens);
    DF_ASSIGN_OR_RETURN(engine_, Engine::Create(base_, {.n_threads = report_.n_threads,
                                                        .max_num_seqs = kMaxBatch,
                                                        .max_model_len = max_tokens,
                                                        .kv_dtype = kv_dtype,
                                                        .kernels = options_.kernels,
                                                        .enable_prefix_caching = false,  // whole prompts are timed
                                                        .kv_cache_bytes = blocks * block_bytes}));
    report_.kv_dtype = kv_dtype == DType::kBf16 ? "bf16" : "f32";
    report_.prefill_dtype = kernels::PrefillDtypeName(options_.kernels.prefill_dtype);
    report_.kv_bytes = engine_->Stats().kv_bytes;
    return Status::Ok();
  }

  Status MeasureBatch(size_t n) {
    Say("decode, batch " + std::to_string(n));
    const bool distinct = n <= variants_.size();
    const VariantList base(n, nullptr), one(n, variants_.front());
    const VariantList each(variants_.begin(), variants_.begin() + static_cast<ptrdiff_t>(distinct ? n : 0));
    // A step of n variants reads all that they hold once, beside the base.
    double variant_bytes = 0, base_bytes = 0;
    for (const auto& variant : each) variant_bytes += static_cast<double>(variant->bytes);
    std::vector<double> base_s, one_s, each_s, one_ratio, each_ratio, bound_ratio, base_share, each_share, read_rate;
    for (size_t round = 0; round < options_.decode_rounds; ++round) {
      double read_s = gauge_.SecondsPerByte();
      // Reading before and after a run, whose sequences are timed; the next run begins where it ended.
      const auto read_around = [&] { return (std::exchange(read_s, gauge_.SecondsPerByte()) + read_s) / 2; };
      DF_ASSIGN_OR_RETURN(const DecodeTimes of_base, RunTogether(*engine_, base, options_.decode_tokens));
      const double base_step_s = Median(of_base.step_s), read_at_base_s = read_around();
      base_bytes = of_base.bytes_per_step;
      base_share.push_back(base_bytes * read_at_base_s / base_step_s);
      read_rate.push_back(1 / read_at_base_s);
      DF_ASSIGN_OR_RETURN(const DecodeTimes of_one, RunTogether(*engine_, one, options_.decode_tokens));
      one_ratio.push_back(Median(of_one.step_s) / base_step_s);
      Append(base_s, of_base.step_s);
      Append(one_s, of_one.step_s);
      if (!distinct) continue;
      read_s = gauge_.SecondsPerByte();
      DF_ASSIGN_OR_RETURN(const DecodeTimes of_each, RunTogether(*engine_, each, options_.decode_tokens));
      const double each_step_s = Median(of_each.step_s);
      const double each_read_s = (base_bytes + variant_bytes) * read_around();
      each_ratio.push_back(each_step_s / base_step_s);
      bound_ratio.push_back(each_step_s / std::max(base_step_s, each_read_s));
      each_share.push_back(each_read_s / each_step_s);
      Append(each_s, of_each.step_s);
    }
    BatchLine line = {.n_rows = n,
                      .base_step_ms = Milliseconds(Median(base_s)),
                      .one_step_ms = Milliseconds(Median(one_s)),
                      .read_bytes_per_second = Median(read_rate),
                      .one_ratio = PairedRatio(one_ratio),
                      .base_bandwidth_share = PairedRatio(base_share)};
    if (distinct) {
      line.distinct_step_ms = Milliseconds(Median(each_s));
      line.distinct_ratio = PairedRatio(each_ratio);
      line.distinct_bound_ratio = PairedRatio(bound_ratio);
      line.distinct_bandwidth_share = PairedRatio(each_share);
    }
    if (n == 1) one_row_bytes_ = {base_bytes, base_bytes + variant_bytes};
    report_.batches.push_back(std::move(line));
    return Status::Ok();
  }

  static void Append(std::vector<double>& to, const std::vector<double>& from) {
    to.insert(to.end(), from.begin(), from.end());
  }

  Status MeasureTable() {
    Say("time to first token of every variant");
    std::vector<std::vector<double>> ttft_s(1 + variants_.size()), ratio(1 + variants_.size());
    for (size_t round = 0; round < options_.table_rounds; ++round) {
      for (size_t i = 0; i < ttft_s.size(); ++i) {
        const auto variant = i == 0 ? nullptr : variants_[i - 1];
        DF_ASSIGN_OR_RETURN(const RequestTimes times, RunAlone(*engine_, variant, options_.table_prompt_tokens, 1));
        ttft_s[i].push_back(times.ttft_s);
        ratio[i].push_back(times.ttft_s / ttft_s[0].back());
      }
    }
    for (size_t i = 0; i < ttft_s.size(); ++i) {
      report_.variants.push_back({.name = i == 0 ? "base" : "variant " + std::to_string(i),
                                  .p50_ttft_ms = Milliseconds(Median(ttft_s[i])),
                                  .p99_ttft_ms = Milliseconds(Percentile(ttft_s[i], 99)),
                                  .ratio = Median(ratio[i]),
                                  .n_requests = ttft_s[i].size()});
    }
    return Status::Ok();
  }

  Status MeasurePrompt(size_t n) {
    Say("prompt of " + std::to_string(n) + " tokens");
    std::vector<double> ttft[2], gaps[2], share[2], ttft_ratio, gap_ratio, read_rate;
    const size_t min_pairs = n == kPromisePromptTokens ? options_.promise_pairs : 1;
    const SteadyClock clock;
    const int64_t start_us = clock.NowUs();
    double pair_s = 0;
    do {
      double gap_median[2] = {};
      for (const size_t side : {size_t{0}, size_t{1}}) {
        const auto variant = side == 0 ? nullptr : variants_[ttft_ratio.size() % variants_.size()];
        DF_ASSIGN_OR_RETURN(const RequestTimes times, RunAlone(*engine_, variant, n, kTokensAfterPrompt));
        ttft[side].push_back(times.ttft_s);
        Append(gaps[side], times.token_gap_s);
        gap_median[side] = Median(times.token_gap_s);
        // What one row reads, and the keys and values of the prompt, beside reading just behind these steps.
        const double bytes = one_row_bytes_[side] + static_cast<double>(n) * kv_token_bytes_;
        const double read_s = gauge_.SecondsPerByte();
        share[side].push_back(bytes * read_s / gap_median[side]);
        read_rate.push_back(1 / read_s);
      }
      ttft_ratio.push_back(ttft[1].back() / ttft[0].back());
      gap_ratio.push_back(gap_median[1] / gap_median[0]);
      pair_s = static_cast<double>(clock.NowUs() - start_us) * 1e-6 / static_cast<double>(ttft_ratio.size());
    } while (ttft_ratio.size() < min_pairs ||
             (ttft_ratio.size() < kMaxPairs &&
              pair_s * static_cast<double>(ttft_ratio.size() + 1) <= options_.prompt_budget_s));
    PromptLine line = {.n_tokens = n, .n_pairs = ttft_ratio.size()};
    line.base_ttft_ms = Milliseconds(Median(ttft[0]));
    line.variant_ttft_ms = Milliseconds(Median(ttft[1]));
    line.read_bytes_per_second = Median(read_rate);
    line.base_token_ms = Milliseconds(Median(gaps[0]));
    line.variant_token_ms = Milliseconds(Median(gaps[1]));
    line.ttft_ratio = PairedRatio(ttft_ratio);
    line.token_ratio = PairedRatio(gap_ratio);
    if (one_row_bytes_[0] > 0) {
      line.base_bandwidth_share = PairedRatio(share[0]);
      line.variant_bandwidth_share = PairedRatio(share[1]);
    }
    report_.prompts.push_back(std::move(line));
    return Status::Ok();
  }

  const ModelBenchOptions& options_;
  ModelBenchReport& report_;
  std::shared_ptr<const BaseWeights> base_;
  ReadGauge gauge_;
  VariantList variants_;
  std::unique_ptr<Engine> engine_;
  double kv_token_bytes_ = 0;
  std::array<double, 2> one_row_bytes_ = {};  // of a decode step of the base, of a variant; 0 until measured
};

}  // namespace

ModelBenchOptions QuickModelBench(ModelBenchOptions options) {
  const ModelBenchOptions usual;
  if (options.prompt_tokens == usual.prompt_tokens) options.prompt_tokens = {16, 64};
  if (options.batches == usual.batches) options.batches = {1, 2, 4, 8};
  options.table_prompt_tokens = 16;
  options.table_rounds = 2;
  options.decode_rounds = 2;
  options.prompt_budget_s = 2;
  options.promise_pairs = 1;
  return options;
}

Result<std::shared_ptr<const BaseWeights>> MakeBenchBase(const ModelConfig& config, size_t n_variants) {
  DF_RETURN_IF_ERROR(CheckMemory("this model with " + std::to_string(n_variants) + " variants",
                                 SyntheticBaseBytes(config) + n_variants * SyntheticVariantBytes(config)));
  KernelContext context(UsableCpus());
  return SyntheticBase(context, config, 1);
}

Result<ModelBenchReport> RunModelBench(const std::string& shape, std::shared_ptr<const BaseWeights> base,
                                       const ModelBenchOptions& options) {
  DF_RETURN_IF_ERROR(Check(options, base->config));
  if (kernels::IsScalarTarget()) {
    return FailedPrecondition("the scalar target is the oracle and has no limits to be measured against");
  }
  ModelBenchReport report = {.shape = shape, .vector_target = kernels::CurrentTarget()};
  report.n_threads = options.n_threads == 0 ? UsableCpus() : options.n_threads;
  report.n_variants = options.n_variants;
  const auto measure = [&](Machine& machine) {
    if (options.on_progress) options.on_progress("limits");
    KernelContext context(report.n_threads);
    machine = MeasureMachine(context);
  };
  measure(report.before);
  DF_RETURN_IF_ERROR(ModelRun(std::move(base), options, report).All());
  measure(report.after);
  report.drift = Drift(report.before, report.after);
  report.is_void = PeakDrift(report.before, report.after) > options.max_drift;
  return report;
}

}  // namespace df::tools
