#include "cli/bench.h"

#include "cli/command.h"

namespace df::cli {

void AddBench(const Command& app) {
  const Command command =
      app.Sub("bench", "Measure: kernels against the machine's limits, models, a server, the codec");
  command.RequireSub();
  AddBenchKernels(command);
  AddBenchModel(command);
  AddBenchServe(command);
  AddBenchCodec(command);
  command.Footer(
      "Examples:\n"
      "  deltafold bench kernels\n"
      "  deltafold bench model --shape qwen3-0.6b --plot qwen3.svg\n"
      "  deltafold bench serve --url http://127.0.0.1:8000 --rate 4\n"
      "  deltafold bench kernels --help");
}

}  // namespace df::cli
