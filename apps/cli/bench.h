// The commands below `deltafold bench`, one file each.
#ifndef DELTAFOLD_CLI_BENCH_H_
#define DELTAFOLD_CLI_BENCH_H_

#include <string_view>

#include "cli/flags.h"

namespace df::cli {

// How a run that measured the machine's limits at its start and end exits: 0, or 1 and a line on stderr where the
// cores' own speed drifted so far that its figures are void.
int ExitOfRun(std::string_view command, bool is_void);

void AddBenchKernels(const Command& bench);
void AddBenchModel(const Command& bench);
void AddBenchServe(const Command& bench);
void AddBenchCodec(const Command& bench);
void AddBenchMerge(const Command& bench);

}  // namespace df::cli

#endif  // DELTAFOLD_CLI_BENCH_H_
