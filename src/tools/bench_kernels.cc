#include "tools/bench_kernels.h"

#include <algorithm>
#include <memory>

#include "base/json.h"
#include "engine/sizing.h"
#include "kernels/target.h"
#include "tools/adapter_rows.h"
#include "tools/attention_rows.h"
#include "tools/element_rows.h"
#include "tools/head_rows.h"
#include "tools/linear_rows.h"
#include "tools/option_rows.h"
#include "tools/prefill_dtype_rows.h"
#include "tools/step_rows.h"
#include "tools/synthetic_shape.h"
#include "tools/synthetic_weights.h"

namespace df::tools {
namespace {

// The square one that the targets were set on, and the smallest and the largest kind of matrix in real models.
const MatrixShape kMatrixShapes[] = {
    {"4096x4096", 4096, 4096}, {"qwen3-0.6b gate 3072x1024", 3072, 1024}, {"llama-8b down 4096x14336", 4096, 14336}};
constexpr char kStepShape[] = "qwen3-0.6b";
constexpr uint64_t kMemoryBytes = uint64_t{2} << 30;  // of the largest shape, or of the step's model with its KV cache

// Two models with grouped heads and large vocabularies.
const AttentionShape kAttentionShape = {.name = "llama-8b 32/8 heads", .n_heads = 32, .n_kv_heads = 8, .head_dim = 128};
const MatrixShape kHeadShapes[] = {{"qwen3-0.6b head 151936x1024", 151'936, 1024},
                                   {"llama-8b head 128256x4096", 128'256, 4096}};
const ElementShape kElementShape = {
    .name = "qwen3-0.6b", .d_model = 1024, .n_heads = 16, .head_dim = 128, .d_ff = 3072};

bool IsError(const std::string& name) { return name.find("_error") != std::string::npos; }

Status Check(const KernelBenchOptions& options) {
  if (kernels::IsScalarTarget()) {
    return FailedPrecondition("the scalar target is the oracle and has no limits to be measured against");
  }
  if (options.threads.empty()) return InvalidArgument("threads must name at least one number");
  const uint64_t available = AvailableMemoryBytes();
  if (available != 0 && available < kMemoryBytes) {
    return FailedPrecondition("bench kernels needs " + std::to_string(kMemoryBytes) + " bytes of memory, " +
                              std::to_string(available) + " are free");
  }
  return Status::Ok();
}

Result<std::shared_ptr<const BaseWeights>> StepModel(KernelContext& context) {
  DF_ASSIGN_OR_RETURN(const Json json, SyntheticConfig(kStepShape));
  DF_ASSIGN_OR_RETURN(const ModelConfig config, ParseModelConfig(json));
  return SyntheticBase(context, config, 1);
}

class Run {
 public:
  Run(const KernelBenchOptions& options, RowSelection selection)
      : options_(options),
        selection_(std::move(selection)),
        n_rounds_(options.quick ? options.targets.pairs / 3 + 1 : options.targets.pairs),
        n_plain_rounds_(n_rounds_ / 3 + 1) {
    report_.cpu = CpuName();
    report_.vector_target = kernels::CurrentTarget();
  }

  Result<KernelBenchReport> All() {
    // As programs run by default: paths chosen by cost.
    for (const size_t n : options_.threads) {
      contexts_.push_back(std::make_unique<KernelContext>(n, KernelOptions{.batch_invariant = false}));
    }
    MeasureLimits(report_.before);
    MeasureMatrices();
    for (const auto& context : contexts_) Keep(MeasureErrorRows(*context, selection_, n_rounds_));
    MeasureHeads();
    MeasureOthers();
    if (Wants(selection_, "non_matrix_share")) DF_RETURN_IF_ERROR(MeasureSteps());
    MeasureLimits(report_.after);
    for (size_t i = 0; i < contexts_.size(); ++i) {
      const Machine &before = report_.before[i], &after = report_.after[i];
      report_.drift = std::max(report_.drift, Drift(before, after));
      report_.is_void |= PeakDrift(before, after) > options_.targets.max_drift;
    }
    SortAsInTable();
    return std::move(report_);
  }

 private:
  void Say(const std::string& what, const KernelContext& context) const {
    const size_t n = context.pool.n_threads();
    if (options_.on_progress) options_.on_progress(what + ", " + std::to_string(n) + (n == 1 ? " thread" : " threads"));
  }

  void MeasureLimits(std::vector<Machine>& machines) {
    for (const auto& context : contexts_) {
      Say("limits", *context);
      machines.push_back(MeasureMachine(*context));
    }
  }

  void MeasureMatrices() {
    if (!WantsAny(selection_, {"gemv_*", "base_*", "decode_*", "prefill_*", "repack_*", "adapter_*", "sign_*",
                               "batch_invariant_*"})) {
      return;
    }
    for (const MatrixShape& shape : kMatrixShapes) {
      for (const auto& context : contexts_) {
        Say(shape.name, *context);
        LinearWorld world(*context, shape);
        Keep(MeasureLinearRows(world, selection_, n_rounds_));
        Keep(MeasurePrefillDtypeRows(world, selection_, n_plain_rounds_));
        if (&shape != kMatrixShapes) continue;
        Keep(MeasureAdapterRows(world, selection_, n_plain_rounds_));
        Keep(MeasureOptionRows(world, selection_, n_plain_rounds_));
      }
      if (options_.quick) break;
    }
  }

  void MeasureHeads() {
    if (!WantsAny(selection_, {"head_*", "embed_*"})) return;
    for (const MatrixShape& shape : kHeadShapes) {
      kernels::LinearWeight head;
      head.weight = SyntheticWeight(*contexts_.back(), shape.d_out, shape.d_in, 1);
      for (const auto& context : contexts_) {
        Say(shape.name, *context);
        Keep(MeasureHeadRows(*context, head, shape.name, selection_, n_plain_rounds_));
      }
      if (options_.quick) break;
    }
  }

  void MeasureOthers() {
    for (const auto& context : contexts_) {
      if (WantsAny(selection_, {"attention_*", "kv_*"})) {
        Say("attention", *context);
        Keep(MeasureAttentionRows(*context, kAttentionShape, selection_, n_plain_rounds_));
      }
      Keep(MeasureElementRows(*context, kElementShape, selection_, n_plain_rounds_));
    }
  }

  Status MeasureSteps() {
    DF_ASSIGN_OR_RETURN(const auto base, StepModel(*contexts_.back()));
    for (const auto& context : contexts_) {
      Say("decode step", *context);
      Keep(MeasureStepRows(*context, base, kStepShape, selection_, n_rounds_));
    }
    return Status::Ok();
  }

  void Keep(std::vector<RowResult> rows) {
    for (RowResult& row : rows) {
      JudgedRow& judged = report_.rows.emplace_back(Judge(std::move(row), options_.targets, report_.vector_target));
      for (const Machine& machine : report_.before) {
        if (machine.n_threads == judged.row.n_threads) judged.bound_share = BoundShare(judged.row, machine);
      }
    }
  }

  void SortAsInTable() {
    std::vector<JudgedRow> sorted;
    for (const Target& target : options_.targets.targets) {
      for (JudgedRow& row : report_.rows) {
        if (row.row.name == target.name) sorted.push_back(std::move(row));
      }
    }
    report_.rows = std::move(sorted);
  }

  const KernelBenchOptions& options_;
  const RowSelection selection_;
  const size_t n_rounds_, n_plain_rounds_;  // of rows with a target, and of those without
  std::vector<std::unique_ptr<KernelContext>> contexts_;
  KernelBenchReport report_;
};

Json ToJson(const JudgedRow& judged) {
  const RowResult& row = judged.row;
  Json json = {{"name", row.name}, {"shape", row.shape}, {"threads", row.n_threads}};
  const bool measured = judged.verdict != Verdict::kMissing;
  json["value"] = measured ? Json(judged.value) : Json();
  if (measured) json["interval"] = {judged.bounds.low, judged.bounds.high};
  json["samples"] = row.samples;
  json["unit"] = judged.unit;
  json["target"] = judged.target ? Json(*judged.target) : Json();
  if (judged.target) json["better"] = judged.higher_is_better ? "higher" : "lower";
  json["pass"] = judged.verdict == Verdict::kPass   ? Json(true)
                 : judged.verdict == Verdict::kMiss ? Json(false)
                                                    : Json();
  if (row.bytes_per_second > 0) json["bytes_per_second"] = row.bytes_per_second;
  if (row.flops_per_second > 0) json["flops_per_second"] = row.flops_per_second;
  if (judged.bound_share) json["bound_share"] = *judged.bound_share;
  if (!measured) json["reason"] = row.missing;
  return json;
}

}  // namespace

std::string_view VerdictName(Verdict verdict) {
  switch (verdict) {
    case Verdict::kPass: return "pass";
    case Verdict::kMiss: return "MISS";
    case Verdict::kNoTarget: return "no target";
    case Verdict::kMissing: return "not measured";
  }
  return "";
}

JudgedRow Judge(RowResult row, const TargetTable& targets, const std::string& vector_target) {
  JudgedRow judged;
  const Target* target = targets.FindOrNull(row.name);
  if (target != nullptr) {
    judged.unit = target->unit;
    judged.target = target->For(vector_target);
    judged.higher_is_better = target->higher_is_better;
  }
  if (!row.samples.empty()) {
    if (IsError(row.name)) {  // what counts is the worst case, not the usual one
      judged.value = *std::max_element(row.samples.begin(), row.samples.end());
      judged.bounds = {.low = *std::min_element(row.samples.begin(), row.samples.end()), .high = judged.value};
    } else {
      judged.value = Median(row.samples);
      judged.bounds = MedianBounds(row.samples);
    }
    const bool meets = judged.target && target->Meets(*judged.target, judged.bounds);
    judged.verdict = !judged.target ? Verdict::kNoTarget : meets ? Verdict::kPass : Verdict::kMiss;
  }
  judged.row = std::move(row);
  return judged;
}

std::optional<double> BoundShare(const RowResult& row, const Machine& machine) {
  if (row.from_cache || (!row.read_share && row.flops_per_second <= 0)) return std::nullopt;
  const double peak = row.by_bf16_dots ? machine.dot_bf16_flops_per_second : machine.flops_per_second;
  return std::max(row.read_share.value_or(0), row.flops_per_second / peak);
}

Result<RowSelection> SelectRows(const RowSelection& patterns, const TargetTable& table) {
  RowSelection names;
  std::string known;
  for (const Target& target : table.targets) {
    known += (known.empty() ? "" : ", ") + target.name;
    if (patterns.empty()) names.insert(target.name);
  }
  for (const std::string& pattern : patterns) {
    bool any = false;
    for (const Target& target : table.targets) {
      if (!Matches(pattern, target.name)) continue;
      any = true;
      names.insert(target.name);
    }
    if (!any) return InvalidArgument("there is no row \"" + pattern + "\"; the table has " + known);
  }
  return names;
}

Result<KernelBenchReport> RunKernelBench(const KernelBenchOptions& options) {
  DF_RETURN_IF_ERROR(Check(options));
  DF_ASSIGN_OR_RETURN(RowSelection selection, SelectRows(options.only, options.targets));
  return Run(options, std::move(selection)).All();
}

Json ToJson(const KernelBenchReport& report) {
  Json limits = {{"cpu", report.cpu}, {"vector_target", report.vector_target}};
  for (const auto& [key, machines] : {std::pair("before", &report.before), std::pair("after", &report.after)}) {
    Json list = Json::array();
    for (const Machine& machine : *machines) list.push_back(ToJson(machine));
    limits[key] = std::move(list);
  }
  limits["drift"] = report.drift;
  Json results = Json::array();
  for (const JudgedRow& row : report.rows) results.push_back(ToJson(row));
  return {{"void", report.is_void}, {"limits", std::move(limits)}, {"results", std::move(results)}};
}

}  // namespace df::tools
