#include "cli/bench.h"

#include <iostream>

#include "cli/command.h"

namespace df::cli {

int ExitOfRun(std::string_view command, bool is_void) {
  if (!is_void) return 0;
  std::cerr
      << "deltafold " << command
      << ": the run is void: the machine's multiply-add peak moved by more than a tenth; run it again with nothing "
         "else running\n";
  return 1;
}

void AddBench(const Command& app) {
  const Command command =
      app.Sub("bench", "Measure: kernels against the machine's limits, models, a server, the codec, merging");
  command.RequireSub();
  AddBenchKernels(command);
  AddBenchModel(command);
  AddBenchServe(command);
  AddBenchCodec(command);
  AddBenchMerge(command);
  command.Footer(
      "Examples:\n"
      "  deltafold bench kernels\n"
      "  deltafold bench model --shape qwen3-0.6b --plot qwen3.svg\n"
      "  deltafold bench serve --url http://127.0.0.1:8000 --rate 4\n"
      "  deltafold bench kernels --help");
}

}  // namespace df::cli
