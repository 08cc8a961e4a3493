// Merging and the adapter pool against what we want of them: a share of the memory's read speed, or a time.
#ifndef DELTAFOLD_TOOLS_BENCH_MERGE_H_
#define DELTAFOLD_TOOLS_BENCH_MERGE_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/json_fwd.h"
#include "base/status.h"

namespace df::tools {

struct MergeBenchOptions {
  std::string shape = "llama-1b";  // of the made-up family and the adapters (synthetic_shape.h)
  std::string directory = {};      // an existing one, for a temporary directory in it; "" = the system's
  std::string family = {};         // where the family is, or is to be made, and stays; "" = a temporary one
  size_t n_threads = 0;            // 0 = UsableCpus()
  size_t n_rounds = 3;
  size_t rows = 4096, cols = 14336;                               // of the tensor with singular values; above 512 each
  std::function<void(const std::string& what)> on_progress = {};  // may be empty
};

struct MergeLine {
  std::string what;
  double seconds = 0;  // median of the rounds, wall time
  uint64_t bytes = 0;  // read of all inputs and written, where a share of the memory's speed is wanted; else 0
  double share = 0;    // bytes a second over the memory's read speed
  std::optional<double> least_share = {}, most_seconds = {};  // what we want: one of them, or neither
  std::string way = {};                                       // of a tensor with singular values

  bool has_target() const { return least_share || most_seconds; }
  bool passes() const { return least_share ? share >= *least_share : seconds <= *most_seconds; }
};

struct MergeBenchReport {
  std::string shape;
  size_t n_threads = 0;
  double read_bytes_per_second = 0;  // of memory, all threads
  std::vector<MergeLine> lines = {};
};

// The only errors are kInvalidArgument (unknown shape), kFailedPrecondition (the scalar target) and kIo; what was
// written is removed, but for a family that has a place of its own.
Result<MergeBenchReport> RunMergeBench(const MergeBenchOptions& options);

Json ToJson(const MergeBenchReport& report);

}  // namespace df::tools

#endif  // DELTAFOLD_TOOLS_BENCH_MERGE_H_
