// The progress line of the long commands: on stderr, on a terminal only, gone when the work is done.
#ifndef DELTAFOLD_CLI_PROGRESS_H_
#define DELTAFOLD_CLI_PROGRESS_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "base/clock.h"

namespace df::cli {

struct ProgressState {
  uint64_t done_bytes = 0;
  uint64_t total_bytes = 0;
  size_t done_items = 0;
  size_t total_items = 0;
};

// "compress  [=====>    ]  52 %  147/291 tensors  7.1/13.5 GB  1.42 GB/s  ETA 0:05", cut to `width` columns.
std::string ProgressLine(std::string_view label, const ProgressState& state, double elapsed_s, size_t width);

// Thread-compatible. Clears its line when destroyed.
class Progress {
 public:
  explicit Progress(std::string label);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Cheap: draws at most ten times a second, nothing at all when stderr is no terminal.
  void Update(const ProgressState& state);
  // The same for work that is not bytes of tensors: "eval  [====  ]  52 %  math answers".
  void Update(std::string_view what, uint64_t done, uint64_t total);

 private:
  bool IsDue(int64_t now_us);

  std::string label_;
  SteadyClock clock_;
  int64_t start_us_;
  int64_t drawn_us_ = 0;  // 0: nothing stands on the line
  bool is_terminal_;
};

}  // namespace df::cli

#endif  // DELTAFOLD_CLI_PROGRESS_H_
