// The commands below `deltafold bench`, one file each.
#ifndef DELTAFOLD_CLI_BENCH_H_
#define DELTAFOLD_CLI_BENCH_H_

#include "cli/flags.h"

namespace df::cli {

void AddBenchKernels(const Command& bench);
void AddBenchModel(const Command& bench);
void AddBenchServe(const Command& bench);
void AddBenchCodec(const Command& bench);

}  // namespace df::cli

#endif  // DELTAFOLD_CLI_BENCH_H_
