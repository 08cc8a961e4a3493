// The sub-commands of the one binary. Each file adds its own sub-command to the app; what it is bound to run sets the
// exit code: 0 ok; 1 failed, what was named is bad or missing; 2 wrong usage, the command line itself cannot be meant.
#ifndef DELTAFOLD_CLI_COMMAND_H_
#define DELTAFOLD_CLI_COMMAND_H_

#include <string>
#include <string_view>

#include "base/status.h"
#include "cli/flags.h"

namespace df::cli {

// Prints "deltafold <command>: <message>" to stderr and returns the exit code of `status` (0 when ok, 2 for
// kInvalidArgument, else 1).
int Report(std::string_view command, const Status& status);

// kFailedPrecondition where something, a link to nothing too, stands at `out` and is not to be replaced.
Status CheckOutFree(const std::string& out, bool replace);

// What a reader of files said. A wrong value in a file is no wrong usage, whatever code the reader chose for it.
inline Status FromFiles(const Status& status) {
  return status.code() == StatusCode::kInvalidArgument ? FailedPrecondition(status.message()) : status;
}
template <typename T>
Result<T> FromFiles(Result<T> result) {
  if (!result.ok()) return FromFiles(result.status());
  return result;
}

void AddBench(const Command& app);
void AddCompress(const Command& app);
void AddEval(const Command& app);
void AddExport(const Command& app);
void AddImport(const Command& app);
void AddInspect(const Command& app);
void AddMaterialize(const Command& app);
void AddMerge(const Command& app);
void AddVerify(const Command& app);
void AddChat(const Command& app);
void AddLogits(const Command& app);
void AddPlan(const Command& app);
void AddPool(const Command& app);
void AddRun(const Command& app);
void AddServe(const Command& app);
void AddSoup(const Command& app);
void AddVariants(const Command& app);
void AddVersion(const Command& app);

}  // namespace df::cli

#endif  // DELTAFOLD_CLI_COMMAND_H_
