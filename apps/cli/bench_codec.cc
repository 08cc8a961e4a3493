#include "tools/bench_codec.h"

#include <iostream>
#include <memory>

#include "base/json.h"
#include "cli/bench.h"
#include "cli/command.h"
#include "cli/table.h"

namespace df::cli {
namespace {

struct Arguments {
  tools::CodecBenchOptions options;
  bool quick = false, json = false;
};

constexpr char kExamples[] =
    "Examples:\n"
    "  deltafold bench codec\n"
    "  deltafold bench codec --shape qwen3-0.6b --dir /var/tmp\n"
    "  deltafold bench codec --quick --json\n"
    "  deltafold bench codec --shape qwen3-0.6b --keep\n"
    "  deltafold bench codec --shape llama-1b --family /var/tmp/llama-1b\n"
    "The family is made up in a temporary directory, which is removed without --keep: 0.3 GB for wide, 2.5 GB for\n"
    "qwen3-0.6b, 5.2 GB for llama-1b. With --family it is made once and used again.";

void Print(const tools::CodecBenchReport& report) {
  const auto rate = [](double bytes_per_second) { return FormatBytes(static_cast<uint64_t>(bytes_per_second)) + "/s"; };
  std::cout << report.shape << ", " << report.n_threads << " threads; memory read "
            << rate(report.read_bytes_per_second) << ", memory copy " << rate(report.copy_bytes_per_second)
            << ", disk read " << rate(report.disk_read_bytes_per_second) << ", disk write "
            << rate(report.disk_write_bytes_per_second) << "\n\n";
  Table table({{"what"},
               {"bytes", Align::kRight},
               {"seconds", Align::kRight},
               {"speed", Align::kRight},
               {"of memory read", Align::kRight},
               {"of memory copy", Align::kRight},
               {"of disk read", Align::kRight}});
  for (const tools::CodecLine& line : report.lines) {
    table.AddRow({line.what, FormatBytes(line.bytes), FormatFixed(line.seconds, 4), rate(line.bytes_per_second()),
                  FormatPercent(line.bytes_per_second() / report.read_bytes_per_second),
                  FormatPercent(line.bytes_per_second() / report.copy_bytes_per_second),
                  FormatPercent(line.bytes_per_second() / report.disk_read_bytes_per_second)});
  }
  std::cout << table.Render() << "\n";
  for (const tools::CodecLine& line : report.lines) {
    if (!line.target) continue;
    std::cout << (line.passes() ? "pass  " : "MISS  ") << line.what << ": " << FormatPercent(line.share_of_limit())
              << " of " << line.target->of << ", wanted " << FormatPercent(line.target->share) << "\n";
  }
  if (!report.kept.empty()) std::cout << "\nbase, fine-tune, delta-0 and compressed are in " << report.kept << "\n";
}

Status Run(const Arguments& arguments) {
  tools::CodecBenchOptions options = arguments.options;
  if (arguments.quick) {
    options.shape = "small";
    options.n_rounds = 1;
  }
  options.on_progress = [](const std::string& what) { std::cerr << "measuring " << what << "\n"; };
  DF_ASSIGN_OR_RETURN(const tools::CodecBenchReport report, tools::RunCodecBench(options));
  if (arguments.json) {
    std::cout << DumpJson(ToJson(report), 1) << "\n";
  } else {
    Print(report);
  }
  return Status::Ok();
}

}  // namespace

void AddBenchCodec(const Command& bench) {
  const Command command = bench.Sub("codec", "Compress, load and pack against memory and disk");
  auto arguments = std::make_shared<Arguments>();
  command.Option("--shape", arguments->options.shape, "Of the made-up family, as in bench model [wide]").Value("SHAPE");
  command.Option("--dir", arguments->options.directory, "Where to put it [the system's temporary directory]")
      .Value("DIR");
  command.Option("--family", arguments->options.family, "Where the family is, or is to be made and left").Value("DIR");
  command.Option("--threads", arguments->options.n_threads, "Threads [all usable]").Range(1, 1024).Value("N");
  command.Switch("--keep", arguments->options.keep, "Leave the family there and say where");
  command.Switch("--quick", arguments->quick, "A small family, one round");
  command.Switch("--json", arguments->json, "Print the report as JSON");
  command.Footer(kExamples);
  command.OnRun([arguments] { return Report("bench codec", Run(*arguments)); });
}

}  // namespace df::cli
