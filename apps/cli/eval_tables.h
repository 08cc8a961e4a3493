// An evaluation for people: tables and plots.
#ifndef DELTAFOLD_CLI_EVAL_TABLES_H_
#define DELTAFOLD_CLI_EVAL_TABLES_H_

#include <string>
#include <vector>

#include "eval/report.h"
#include "tools/svg_plot.h"

namespace df::cli {

// A line a variant and code: full precision, this code, the difference with its interval; then a line a code.
std::string RenderTables(const eval::Report& report);

// What a bit buys: mean exact match and divergence of the codes against bits a weight.
std::vector<tools::Plot> PlotsOf(const eval::Report& report);

}  // namespace df::cli

#endif  // DELTAFOLD_CLI_EVAL_TABLES_H_
