// Compressing, loading and packing against what memory and disk can do in the same run.
#ifndef DELTAFOLD_TOOLS_BENCH_CODEC_H_
#define DELTAFOLD_TOOLS_BENCH_CODEC_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/json_fwd.h"
#include "base/status.h"

namespace df::tools {

struct CodecBenchOptions {
  std::string shape = "wide";  // of the made-up family (synthetic_shape.h)
  std::string directory = {};  // an existing one, for a temporary directory in it; "" = the system's
  std::string family = {};     // a directory where the family is, or is to be made, and stays; "" = a temporary one
  size_t n_threads = 0;        // 0 = UsableCpus()
  size_t n_rounds = 3;
  bool keep = false;                                              // the made-up family stays where the report says
  std::function<void(const std::string& what)> on_progress = {};  // may be empty
};

// What we want of a line: a share of a limit that was measured in the same run.
struct CodecTarget {
  std::string of;  // name of the limit
  double limit_bytes_per_second = 0;
  double share = 0;
};

struct CodecLine {
  std::string what;
  uint64_t bytes = 0;  // that are worked through
  double seconds = 0;  // median of the rounds, wall time
  std::optional<CodecTarget> target = {};
  double bytes_per_second() const { return static_cast<double>(bytes) / seconds; }
  // Of a line with a target.
  double share_of_limit() const { return bytes_per_second() / target->limit_bytes_per_second; }
  bool passes() const { return share_of_limit() >= target->share; }
};

struct CodecBenchReport {
  std::string shape;
  size_t n_threads = 0;
  double read_bytes_per_second = 0, copy_bytes_per_second = 0;             // of memory
  double disk_read_bytes_per_second = 0, disk_write_bytes_per_second = 0;  // past the page cache; to stable storage
  std::vector<CodecLine> lines = {};
  std::string kept = {};  // holds base, fine-tune, delta-0, compressed; "" = removed
};

// The only errors are kInvalidArgument (unknown shape) and kIo; what was written is removed unless all went well
// and it is to be kept.
Result<CodecBenchReport> RunCodecBench(const CodecBenchOptions& options);

Json ToJson(const CodecBenchReport& report);

}  // namespace df::tools

#endif  // DELTAFOLD_TOOLS_BENCH_CODEC_H_
