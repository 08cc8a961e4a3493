#include "tools/bench_serve.h"

#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>

#include "base/json.h"
#include "cli/bench.h"
#include "cli/command.h"
#include "cli/table.h"

namespace df::cli {
namespace {

struct Arguments {
  std::string url = "http://127.0.0.1:8000";
  std::string rate = "inf";
  std::string api_key;
  tools::ServeBenchOptions options;
  bool no_baseline = false, json = false;
};

const std::map<std::string, tools::Mix> kMixes = {{"zipf", tools::Mix::kZipf}, {"uniform", tools::Mix::kUniform}};

constexpr char kExamples[] =
    "Examples:\n"
    "  deltafold bench serve --url http://127.0.0.1:8000\n"
    "  deltafold bench serve --model base,math,sql --rate 4 --num-prompts 200 --mix uniform\n"
    "  deltafold bench serve --model sql --baseline base --input-len 512 --output-len 64 --json\n"
    "The base is asked alone first, with the same arrivals but other prompts; ratios are to that run.";

std::string Ms(double ms) { return FormatFixed(ms, 1); }

std::string Over(double value, double base) { return base > 0 ? FormatFixed(value / base, 2) : "-"; }

void Print(const tools::ServeBenchReport& report) {
  Table table({{"model"},
               {"ok", Align::kRight},
               {"failed", Align::kRight},
               {"tokens/s", Align::kRight},
               {"TTFT P50 ms", Align::kRight},
               {"P99", Align::kRight},
               {"to base", Align::kRight},
               {"TPOT P50 ms", Align::kRight},
               {"P99", Align::kRight},
               {"to base", Align::kRight},
               {"E2E P50 ms", Align::kRight}});
  const auto add = [&](const tools::LoadFigures& f, const std::string& name) {
    const tools::LoadFigures* base = report.baseline ? &*report.baseline : nullptr;
    const double speed = f.duration_s > 0 ? static_cast<double>(f.output_tokens) / f.duration_s : 0;
    table.AddRow({name, std::to_string(f.completed), std::to_string(f.failed), FormatFixed(speed, 1), Ms(f.ttft.median),
                  Ms(f.ttft.p99), base ? Over(f.ttft.median, base->ttft.median) : "-", Ms(f.tpot.median),
                  Ms(f.tpot.p99), base ? Over(f.tpot.median, base->tpot.median) : "-", Ms(f.e2el.median)});
  };
  if (report.baseline) {
    add(*report.baseline, report.baseline->name + " alone");
    table.AddRule();
  }
  for (const tools::LoadFigures& figures : report.variants) add(figures, figures.name);
  table.AddRule();
  add(report.total, "total");
  std::cout << table.Render();
  const double seconds = report.total.duration_s;
  std::cout << "\n"
            << report.total.completed << " requests in " << FormatDuration(seconds) << ": "
            << FormatFixed(static_cast<double>(report.total.completed) / seconds, 2) << " requests/s, "
            << FormatFixed(static_cast<double>(report.total.output_tokens) / seconds, 1)
            << " tokens/s; prompts of seed " << report.prompt_seed << "\n";
  if (!report.first_failure.empty()) std::cout << "first failure: " << Printable(report.first_failure) << "\n";
}

Status Run(const Arguments& arguments) {
  tools::ServeBenchOptions options = arguments.options;
  options.with_baseline = !arguments.no_baseline;
  options.on_progress = [](const std::string& what) { std::cerr << "asking " << Printable(what) << "\n"; };
  if (arguments.rate != "inf") {
    char* end = nullptr;
    options.rate = std::strtod(arguments.rate.c_str(), &end);
    if (end == arguments.rate.c_str() || *end != '\0') {
      return InvalidArgument("rate must be a number above 0 or inf, got \"" + arguments.rate + "\"");
    }
  }
  DF_ASSIGN_OR_RETURN(tools::Endpoint endpoint, tools::ParseEndpoint(arguments.url));
  endpoint.api_key = arguments.api_key;
  DF_ASSIGN_OR_RETURN(const tools::ServeBenchReport report, tools::RunServeBench(endpoint, std::move(options)));
  if (arguments.json) {
    std::cout << DumpJson(ToJson(report), 1) << "\n";
  } else {
    Print(report);
  }
  return Status::Ok();
}

void AddLoadOptions(const Command& command, Arguments& arguments) {
  tools::ServeBenchOptions& options = arguments.options;
  command.Option("--rate", arguments.rate, "Requests per second, arrivals as of a Poisson process; inf = all at once")
      .Value("R|inf [inf]");
  command.Option("--num-prompts", options.n_requests, "Requests of each of the two runs [100]")
      .Range(1, 100'000)
      .Value("N");
  command.Option("--input-len", options.n_prompt, "Tokens of a prompt [128]").Range(1, 1'000'000).Value("N");
  command.Option("--output-len", options.n_output, "Tokens of an answer [32]").Range(1, 1'000'000).Value("N");
  command
      .Choice("--mix", kMixes, options.mix, "How often each model is asked: zipf (the k-th as 1/k) or uniform [zipf]")
      .Value("MIX");
  command.Option("--seed", options.seed, "Of arrivals and models [0]").Value("N");
  command.Option("--prompt-seed", options.prompt_seed, "Of prompts [another each time: no cache knows them]")
      .Value("N");
  command.Option("--max-concurrency", options.load.max_concurrency, "Requests under way at once, at most [256]")
      .Range(1, 4096)
      .Value("N");
  command.Option("--timeout", options.load.timeout_s, "Seconds that a request may take [600]").Value("SECONDS");
  command.Option("--vocab", options.load.vocab, "Prompts are random token ids from 1 to this [100]")
      .Range(1, 10'000'000)
      .Value("N");
}

}  // namespace

void AddBenchServe(const Command& bench) {
  const Command command = bench.Sub("serve", "Load on a running server, in vLLM's result keys");
  auto arguments = std::make_shared<Arguments>();
  command.Option("--url", arguments->url, "Of the server").ShowDefault();
  command.Option("--model", arguments->options.models, "Names to ask [all that the server lists]")
      .SplitAtCommas()
      .Value("NAME,NAME,...");
  command.Option("--baseline", arguments->options.baseline, "Asked alone first [the listed model without a parent]")
      .Value("NAME");
  command.Switch("--no-baseline", arguments->no_baseline, "Without that run: no ratios");
  command.Option("--api-key", arguments->api_key, "For a server that wants one").Env("DELTAFOLD_API_KEY").Value("KEY");
  AddLoadOptions(command, *arguments);
  command.Switch("--json", arguments->json, "Print vLLM's result keys as JSON");
  command.Footer(kExamples);
  command.OnRun([arguments] { return Report("bench serve", Run(*arguments)); });
}

}  // namespace df::cli
