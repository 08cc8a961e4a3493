// A shell command of the user's, run to its end within a time, and what it printed.
#ifndef DELTAFOLD_TOOLS_BOUNDED_COMMAND_H_
#define DELTAFOLD_TOOLS_BOUNDED_COMMAND_H_

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace df::tools {

struct CommandOptions {
  double timeout_s = 3600;
  // Asked ten times a second: false ends the command, and RunCommand with kCancelled. May be empty.
  std::function<bool()> go_on = {};
};

// What a command printed, the last 64 KiB of each.
struct CommandOutput {
  std::string out, error;
};

// Runs `command` by /bin/sh in a process group of its own, with no input and no signal blocked. What the command leaves
// running in that group is killed at its end, as is all of it at the timeout. The only errors are kFailedPrecondition
// (it ended with another status than 0, or by a signal), kDeadlineExceeded, both with the end of what it printed;
// kCancelled and kIo.
Result<CommandOutput> RunCommand(const std::string& command, const CommandOptions& options);

// `text` as one word of a shell.
std::string ShellQuoted(std::string_view text);

// The last number of `text`, which stands by itself: "loss=0.25 (3 s)" ends in 3, "step360" in none. "nan" and "inf"
// are numbers.
std::optional<double> LastNumber(std::string_view text);

}  // namespace df::tools

#endif  // DELTAFOLD_TOOLS_BOUNDED_COMMAND_H_
