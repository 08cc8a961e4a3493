#include "tools/bench_kernels.h"

#include <array>
#include <cstdio>
#include <iostream>
#include <memory>

#include "base/atomic_file.h"
#include "base/clock.h"
#include "base/json.h"
#include "cli/bench.h"
#include "cli/command.h"
#include "cli/table.h"
#include "kernels/target.h"

namespace df::cli {
namespace {

struct Arguments {
  std::vector<size_t> threads = {1, 2};
  std::vector<std::string> only;
  std::string targets;
  bool quick = false;
  bool json = false;
};

constexpr size_t kMaxTargetsBytes = size_t{1} << 20;

constexpr char kExamples[] =
    "Examples:\n"
    "  deltafold bench kernels\n"
    "  deltafold bench kernels --quick --threads 1\n"
    "  deltafold bench kernels --only 'gemv_bandwidth_share,attention_*'\n"
    "  DELTAFOLD_TARGET=avx2 deltafold bench kernels --json > kernels.json\n"
    "GB/s, GFLOP/s and the larger share of read bandwidth and multiply-add peak are those of the row's own call. A "
    "row\n"
    "with a target passes when the 95 % bound of its median meets the target. Reading is measured again in every "
    "round: "
    "what\n"
    "is compared ran within the same moment. The limits before and after are for the reader, but if a multiply-add "
    "peak "
    "moved\n"
    "by more than a tenth the run is void and the exit code 1.";

std::string FormatValue(const std::string& unit, double value) {
  if (unit != "relative") return FormatFixed(value, 3);
  std::array<char, 32> text = {};
  std::snprintf(text.data(), text.size(), "%.1e", value);
  return text.data();
}

std::string FormatRate(double per_second) { return per_second > 0 ? FormatFixed(per_second * 1e-9, 1) : ""; }

void PrintLimits(const tools::KernelBenchReport& report) {
  std::cout << report.cpu << ", vector target " << report.vector_target << "\n\n";
  Table table({{"threads", Align::kRight},
               {"measured"},
               {"read GB/s", Align::kRight},
               {"copy GB/s", Align::kRight},
               {"FMA GFLOP/s", Align::kRight},
               {"byte look-ups G/s", Align::kRight},
               {"byte dot Gop/s", Align::kRight},
               {"bf16 dot GFLOP/s", Align::kRight}});
  for (size_t i = 0; i < report.before.size(); ++i) {
    for (const auto* machines : {&report.before, &report.after}) {
      const tools::Machine& m = (*machines)[i];
      table.AddRow({std::to_string(m.n_threads), machines == &report.before ? "before" : "after",
                    FormatRate(m.read_bytes_per_second), FormatRate(m.copy_bytes_per_second),
                    FormatRate(m.flops_per_second), FormatRate(m.shuffle_bytes_per_second),
                    m.dot_ops_per_second > 0 ? FormatRate(m.dot_ops_per_second) : "none",
                    m.dot_bf16_flops_per_second > 0 ? FormatRate(m.dot_bf16_flops_per_second) : "none"});
    }
  }
  std::cout << table.Render() << "\n";
}

void PrintRows(const tools::KernelBenchReport& report) {
  Table table({{"name"},
               {"shape"},
               {"threads", Align::kRight},
               {"value", Align::kRight},
               {"95 % bounds", Align::kRight},
               {"target", Align::kRight},
               {"GB/s", Align::kRight},
               {"GFLOP/s", Align::kRight},
               {"of bound", Align::kRight},
               {""}});
  size_t n_passed = 0, n_missed = 0;
  for (const tools::JudgedRow& judged : report.rows) {
    const tools::RowResult& row = judged.row;
    const bool measured = judged.verdict != tools::Verdict::kMissing;
    n_passed += judged.verdict == tools::Verdict::kPass ? 1 : 0;
    n_missed += judged.verdict == tools::Verdict::kMiss ? 1 : 0;
    std::string bounds, target;
    if (measured) {
      bounds = FormatValue(judged.unit, judged.bounds.low) + " .. " + FormatValue(judged.unit, judged.bounds.high);
    }
    if (judged.target) {
      target = (judged.higher_is_better ? ">= " : "<= ") + FormatValue(judged.unit, *judged.target);
    }
    table.AddRow({row.name, row.shape, std::to_string(row.n_threads),
                  measured ? FormatValue(judged.unit, judged.value) : "-", bounds, target,
                  FormatRate(row.bytes_per_second), FormatRate(row.flops_per_second),
                  judged.bound_share ? FormatPercent(*judged.bound_share) : "",
                  std::string(tools::VerdictName(judged.verdict)) + (measured ? "" : ": " + row.missing)});
  }
  std::cout << table.Render() << "\n" << n_passed << " passed, " << n_missed << " missed";
  const size_t n_other = report.rows.size() - n_passed - n_missed;
  if (n_other > 0) std::cout << ", " << n_other << " without a verdict";
  std::cout << "\n";
}

Result<tools::KernelBenchReport> Measure(const Arguments& arguments) {
  std::string text(tools::BuiltInTargetsText());
  if (!arguments.targets.empty()) {
    DF_ASSIGN_OR_RETURN(text, ReadFileBounded(arguments.targets, kMaxTargetsBytes));
  }
  tools::KernelBenchOptions options = {
      .threads = arguments.threads, .only = {}, .quick = arguments.quick, .targets = {}, .on_progress = {}};
  auto targets = tools::ParseTargets(text);
  if (!targets.ok()) return targets.status().Annotate("targets");
  options.targets = std::move(*targets);
  options.only.insert(arguments.only.begin(), arguments.only.end());
  options.on_progress = [](const std::string& what) { std::cerr << "measuring " << what << "\n"; };
  return tools::RunKernelBench(options);
}

int Run(const Arguments& arguments) {
  const SteadyClock clock;
  const int64_t start_us = clock.NowUs();
  const Result<tools::KernelBenchReport> report = Measure(arguments);
  if (!report.ok()) return Report("bench kernels", report.status());
  const double seconds = static_cast<double>(clock.NowUs() - start_us) * 1e-6;
  if (arguments.json) {
    Json json = ToJson(*report);
    json["seconds"] = seconds;
    std::cout << DumpJson(json, 1) << "\n";
  } else {
    PrintLimits(*report);
    PrintRows(*report);
    std::cout << "measured in " << FormatDuration(seconds) << "\n";
  }
  return ExitOfRun("bench kernels", report->is_void);
}

}  // namespace

void AddBenchKernels(const Command& bench) {
  const Command command =
      bench.Sub("kernels", "Every kernel against this machine's limits, and against its target where one is promised");
  auto arguments = std::make_shared<Arguments>();
  command.Option("--threads", arguments->threads, "Numbers of threads to measure with")
      .SplitAtCommas()
      .Range(1, 64)
      .Value("N,N,... [1,2]");
  command.Option("--only", arguments->only, "Only these rows, * stands for anything [all]")
      .SplitAtCommas()
      .Value("PATTERN,...");
  command.Switch("--quick", arguments->quick, "One shape, a third of the rounds: an impression within 30 s");
  command.Option("--targets", arguments->targets, "Other targets than those built in (bench/targets.json)")
      .Value("FILE");
  command.Switch("--json", arguments->json, "Print limits and results as JSON");
  command.Footer(kExamples);
  command.OnRun([arguments] { return Run(*arguments); });
}

}  // namespace df::cli
