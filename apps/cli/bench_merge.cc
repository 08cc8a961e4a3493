#include "tools/bench_merge.h"

#include <iostream>
#include <memory>

#include "base/json.h"
#include "cli/bench.h"
#include "cli/command.h"
#include "cli/table.h"

namespace df::cli {
namespace {

struct Arguments {
  tools::MergeBenchOptions options;
  bool quick = false, json = false;
};

constexpr char kExamples[] =
    "Examples:\n"
    "  deltafold bench merge\n"
    "  deltafold bench merge --dir /dev/shm                      # without a disk: what merging itself takes\n"
    "  deltafold bench merge --family /var/tmp/llama-1b --json\n"
    "  deltafold bench merge --quick\n"
    "Bytes of a merge are those read of all inputs and those written; streamed: until the last tensor is with the\n"
    "file system. The family takes 7.4 GB for llama-1b and the merged model 2.5 GB. It is made up in a temporary\n"
    "directory, which is removed; with --family it is made once and used again.";

void Print(const tools::MergeBenchReport& report) {
  const auto rate = [](double bytes_per_second) { return FormatBytes(static_cast<uint64_t>(bytes_per_second)) + "/s"; };
  std::cout << report.shape << ", " << report.n_threads << " threads; memory read "
            << rate(report.read_bytes_per_second) << "\n\n";
  Table table(
      {{"what"}, {"seconds", Align::kRight}, {"speed", Align::kRight}, {"of memory read", Align::kRight}, {"way"}});
  for (const tools::MergeLine& line : report.lines) {
    const bool has_bytes = line.bytes > 0;
    table.AddRow({line.what, FormatFixed(line.seconds, 4),
                  has_bytes ? rate(static_cast<double>(line.bytes) / line.seconds) : "",
                  has_bytes ? FormatPercent(line.share) : "", line.way});
  }
  std::cout << table.Render() << "\n";
  for (const tools::MergeLine& line : report.lines) {
    if (!line.has_target()) continue;
    std::cout << (line.passes() ? "pass  " : "MISS  ") << line.what << ": ";
    if (line.least_share) {
      std::cout << FormatPercent(line.share) << " of memory read, wanted " << FormatPercent(*line.least_share) << "\n";
    } else {
      std::cout << FormatFixed(line.seconds, 3) << " s, wanted at most " << FormatFixed(*line.most_seconds, 2)
                << " s\n";
    }
  }
}

Status Run(const Arguments& arguments) {
  tools::MergeBenchOptions options = arguments.options;
  if (arguments.quick) {
    options.shape = "small";
    options.n_rounds = 1;
    options.rows = 640;
    options.cols = 768;
  }
  options.on_progress = [](const std::string& what) { std::cerr << "measuring " << what << "\n"; };
  DF_ASSIGN_OR_RETURN(const tools::MergeBenchReport report, tools::RunMergeBench(options));
  if (arguments.json) {
    std::cout << DumpJson(ToJson(report), 1) << "\n";
  } else {
    Print(report);
  }
  return Status::Ok();
}

}  // namespace

void AddBenchMerge(const Command& bench) {
  const Command command = bench.Sub("merge", "Merge models and adapters against memory and the times we want");
  auto arguments = std::make_shared<Arguments>();
  command.Option("--shape", arguments->options.shape, "Of the made-up family, as in bench model [llama-1b]")
      .Value("SHAPE");
  command.Option("--dir", arguments->options.directory, "Where to work [the system's temporary directory]")
      .Value("DIR");
  command.Option("--family", arguments->options.family, "Where the family is, or is to be made and left").Value("DIR");
  command.Option("--threads", arguments->options.n_threads, "Threads [all usable]").Range(1, 1024).Value("N");
  command.Switch("--quick", arguments->quick, "A small family and tensor, one round");
  command.Switch("--json", arguments->json, "Print the report as JSON");
  command.Footer(kExamples);
  command.OnRun([arguments] { return Report("bench merge", Run(*arguments)); });
}

}  // namespace df::cli
