#include <algorithm>
#include <iostream>
#include <memory>

#include "base/json.h"
#include "cli/command.h"
#include "cli/model_argument.h"
#include "cli/table.h"
#include "codec/export_peft.h"
#include "codec/low_rank.h"

namespace df::cli {
namespace {

struct Arguments {
  std::string base, delta, out;
  ExportOptions options;
  size_t n_threads = 0;
  bool json = false;
};

constexpr char kExamples[] =
    "Low-rank codes become lora_A and lora_B as they are; what is stored in full becomes a saved module. Signs have no "
    "such form: without\n--rank they are refused by name, with it they are approximated and the error is printed.\n"
    "Examples:\n"
    "  deltafold compress base finetune delta --code lowrank\n"
    "  deltafold export --base base --delta delta --out adapter\n"
    "  deltafold export --base base --delta one-bit-delta --out adapter --rank 64";

Result<ExportReport> Export(const Arguments& arguments) {
  ExportOptions options = arguments.options;
  DF_ASSIGN_OR_RETURN(const ModelArgument base, ResolveModel(arguments.base));
  DF_ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::Open(base.directory));
  options.base_name = base.name;
  ThreadPool pool(arguments.n_threads > 0 ? arguments.n_threads : UsableCpus());
  return ExportPeft(pool, *checkpoint, arguments.delta, arguments.out, options);
}

void Print(const ExportReport& report, const Arguments& arguments) {
  std::cout << arguments.out << ": " << report.n_factors << " modules of rank at most " << report.largest_rank << ", "
            << report.n_saved << " saved in full, " << FormatBytes(report.bytes) << "\n";
  if (report.approximated.empty()) return;
  double sum = 0, worst = 0;
  for (const ApproximatedWeight& weight : report.approximated) {
    sum += weight.relative_error;
    worst = std::max(worst, weight.relative_error);
  }
  std::cout << report.approximated.size() << " matrices are approximated: relative error of the delta's differences "
            << FormatFixed(sum / static_cast<double>(report.approximated.size()), 4) << " on average, at most "
            << FormatFixed(worst, 4) << "\n";
}

int Run(const Arguments& arguments) {
  const Result<ExportReport> report = Export(arguments);
  if (!report.ok()) return Report("export", FromFiles(report.status()));
  if (!arguments.json) {
    Print(*report, arguments);
    return 0;
  }
  Json json = {{"out", arguments.out},     {"factors", report->n_factors},
               {"saved", report->n_saved}, {"largest_rank", report->largest_rank},
               {"bytes", report->bytes},   {"approximated", Json::array()}};
  for (const ApproximatedWeight& weight : report->approximated) {
    json["approximated"].push_back({{"name", weight.name}, {"relative_error", weight.relative_error}});
  }
  std::cout << DumpJson(json, 2) << "\n";
  return 0;
}

}  // namespace

void AddExport(const Command& app) {
  const Command command = app.Sub("export", "Turn a delta of low-rank codes into a PEFT adapter");
  auto arguments = std::make_shared<Arguments>();
  command.Option("--base", arguments->base, "Base model: directory, or hub id in the local cache")
      .Required()
      .Value("MODEL");
  command.Option("--delta", arguments->delta, "Delta directory").Required().Value("DIR");
  command.Option("--out,-o", arguments->out, "Adapter directory to write; appears whole or not at all")
      .Required()
      .NotEmpty()
      .Value("DIR");
  command.Option("--rank", arguments->options.rank, "Approximate other matrices at this rank [they are refused]")
      .Range(1, kMaxCodedRank)
      .Value("N");
  command.Option("--threads", arguments->n_threads, "Threads [all usable]").Range(1, 1024).Value("N");
  command.Switch("--force", arguments->options.replace, "Replace an existing --out");
  command.Switch("--json", arguments->json, "Print the report as JSON");
  command.Footer(kExamples);
  command.OnRun([arguments] { return Run(*arguments); });
}

}  // namespace df::cli
