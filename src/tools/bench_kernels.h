// Every kernel over shapes of real models, against its target where one is promised, beside this machine's limits.
#ifndef DELTAFOLD_TOOLS_BENCH_KERNELS_H_
#define DELTAFOLD_TOOLS_BENCH_KERNELS_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/json_fwd.h"
#include "tools/machine.h"
#include "tools/row_set.h"
#include "tools/statistics.h"
#include "tools/targets.h"

namespace df::tools {

struct KernelBenchOptions {
  std::vector<size_t> threads = {1, 2};
  RowSelection only = {};  // names of rows, * stands for anything; empty = all of the table
  bool quick = false;      // one shape and a third of the rounds: an impression, not a verdict
  TargetTable targets = {};
  std::function<void(const std::string& what)> on_progress = {};  // may be empty
};

enum class Verdict { kPass, kMiss, kNoTarget, kMissing };
std::string_view VerdictName(Verdict verdict);  // "pass", "MISS", "no target", "not measured"

struct JudgedRow {
  RowResult row;
  std::string unit;
  double value = 0;                   // median; the largest sample of errors
  Interval bounds;                    // 95 % each side
  std::optional<double> target;       // for the current vector target
  bool higher_is_better = false;      // with a target
  std::optional<double> bound_share;  // BoundShare
  Verdict verdict = Verdict::kMissing;
};

struct KernelBenchReport {
  std::string cpu = {}, vector_target = {};
  std::vector<Machine> before = {}, after = {};  // [threads]
  std::vector<JudgedRow> rows = {};
  double drift = 0;      // the largest of the limits between before and after
  bool is_void = false;  // a multiply-add peak drifted further than allowed: no figure of this run counts
};

// Value, bounds and verdict of a row's samples. Pure.
JudgedRow Judge(RowResult row, const TargetTable& targets, const std::string& vector_target);

// The larger share of reading and of the multiply-add peak that the row reached: reading as it was in the same rounds,
// the peak as `machine` has it; nothing for rows that have no cost or whose bytes come from a cache. Pure.
std::optional<double> BoundShare(const RowResult& row, const Machine& machine);

// Names of the table that patterns mean; all where there are none. kInvalidArgument for a pattern that means none.
// Pure.
Result<RowSelection> SelectRows(const RowSelection& patterns, const TargetTable& table);

// kInvalidArgument for an unknown name in `only` or no threads, kFailedPrecondition for the scalar target, which has no
// limits, and for too little memory (both figures are named).
Result<KernelBenchReport> RunKernelBench(const KernelBenchOptions& options);

Json ToJson(const KernelBenchReport& report);

}  // namespace df::tools

#endif  // DELTAFOLD_TOOLS_BENCH_KERNELS_H_
