// tools/: what measures the rest. Input: a shape, a model or a server's address; output: reports as plain structs and
// JSON. bench_kernels, bench_model and bench_codec measure this process, bench_serve a server over HTTP. Called by
// the commands `deltafold bench ...`.
//
// targets.h: what the kernels have promised, from bench/targets.json.
#ifndef DELTAFOLD_TOOLS_TARGETS_H_
#define DELTAFOLD_TOOLS_TARGETS_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tools/statistics.h"

namespace df::tools {

struct Target {
  std::string name;
  std::string what;               // in words
  std::string unit;               // "share", "ratio", "x", "relative"
  bool higher_is_better = false;  // the value must be at least, or at most, the figure
  std::optional<double> avx512 = {}, avx2 = {};

  // The figure for a vector target by its name; nullopt: none promised.
  std::optional<double> For(std::string_view vector_target) const;
  // Whether the bound of the measured median on the bad side meets `figure`.
  bool Meets(double figure, const Interval& bounds) const;
};

struct TargetTable {
  size_t pairs = 0;      // measurements a row, at least
  double max_drift = 0;  // of the machine's limits between start and end of a run
  std::vector<Target> targets;

  const Target* FindOrNull(std::string_view name) const;
};

// The table that was compiled in.
std::string_view BuiltInTargetsText();
// The only errors are kCorrupt (not JSON) and kInvalidArgument (a field is missing or out of range, named).
Result<TargetTable> ParseTargets(std::string_view text);

}  // namespace df::tools

#endif  // DELTAFOLD_TOOLS_TARGETS_H_
