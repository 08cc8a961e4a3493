#include "tools/bench_model.h"

#include <algorithm>
#include <iostream>
#include <memory>

#include "base/atomic_file.h"
#include "base/clock.h"
#include "base/json.h"
#include "cli/bench.h"
#include "cli/command.h"
#include "cli/kernel_arguments.h"
#include "cli/model_argument.h"
#include "cli/table.h"
#include "format/checkpoint.h"
#include "tools/synthetic_shape.h"
#include "tools/targets.h"

namespace df::cli {
namespace {

struct Arguments {
  std::string shape = "qwen3-0.6b";
  tools::ModelBenchOptions options;
  std::string plot;
  WeightMemory weights = WeightMemory::kRam;
  bool synthetic = false, quick = false, json = false;
};

constexpr char kExamples[] =
    "Examples:\n"
    "  deltafold bench model --shape qwen3-0.6b\n"
    "  deltafold bench model --shape tinyllama-1.1b --variants 8 --plot tinyllama.svg\n"
    "  deltafold bench model --shape ./my-model --quick --json\n"
    "  deltafold bench model --shape Qwen/Qwen3-4B --synthetic --batch 1,8 --prompt-len 512\n"
    "Times are wall times through the engine, base and variants in turn: nothing else should run on the machine.\n"
    "Ratios are medians over rounds, and reading is measured in the same rounds, so memory that neighbours make "
    "faster\n"
    "or slower meanwhile does not matter. A promise holds when the 95 % bound of its median does. Should the\n"
    "multiply-add peak differ by more than a tenth between start and end, the run is void and the exit code 1. Some 4\n"
    "minutes for 0.6B on two cores.";

std::string KnownShapes() {
  std::string known;
  for (const std::string& name : tools::SyntheticShapeNames()) known += (known.empty() ? "" : ", ") + name;
  return known;
}

Result<ModelConfig> ConfigOf(const Arguments& arguments) {
  const std::vector<std::string> known = tools::SyntheticShapeNames();
  if (std::find(known.begin(), known.end(), arguments.shape) != known.end()) {
    DF_ASSIGN_OR_RETURN(const Json json, tools::SyntheticConfig(arguments.shape));
    return ParseModelConfig(json);
  }
  const auto model = ResolveModel(arguments.shape);
  if (!model.ok()) return FromFiles(model.status()).Annotate("neither a shape (" + KnownShapes() + ") nor a model");
  return LoadModelConfig(model->directory);
}

// Weights of a known shape are made up; those of a directory are read unless made-up ones are asked for.
Result<std::shared_ptr<const BaseWeights>> MakeBase(const Arguments& arguments) {
  const std::vector<std::string> known = tools::SyntheticShapeNames();
  const bool made_up = arguments.synthetic || std::find(known.begin(), known.end(), arguments.shape) != known.end();
  if (made_up) {
    if (arguments.weights == WeightMemory::kMapped) {
      return InvalidArgument(
          "made-up weights are in no file that could be mapped: `deltafold bench codec --shape SHAPE --keep` writes "
          "files and says where; give the base there as --shape");
    }
    DF_ASSIGN_OR_RETURN(const ModelConfig config, ConfigOf(arguments));
    return tools::MakeBenchBase(config, arguments.options.n_variants);
  }
  const auto model = ResolveModel(arguments.shape);
  if (!model.ok()) return FromFiles(model.status()).Annotate("neither a shape (" + KnownShapes() + ") nor a model");
  DF_ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::Open(model->directory));
  KernelContext context(UsableCpus());
  return LoadBase(context, checkpoint, arguments.weights);
}

void PrintVariants(const tools::ModelBenchReport& report, size_t prompt_tokens) {
  std::cout << "Time to first token, prompts of " << prompt_tokens << " tokens, one request at a time\n";
  Table table({{"variant"},
               {"P50 ms", Align::kRight},
               {"P99 ms", Align::kRight},
               {"ratio to base", Align::kRight},
               {"requests", Align::kRight}});
  for (const tools::VariantLine& line : report.variants) {
    table.AddRow({line.name, FormatFixed(line.p50_ttft_ms, 1), FormatFixed(line.p99_ttft_ms, 1),
                  FormatFixed(line.ratio, 3), std::to_string(line.n_requests)});
  }
  std::cout << table.Render() << "\n";
}

void PrintPrompts(const tools::ModelBenchReport& report) {
  std::cout << "One request alone, base against a variant\n";
  Table table({{"prompt", Align::kRight},
               {"TTFT base ms", Align::kRight},
               {"variant ms", Align::kRight},
               {"ratio", Align::kRight},
               {"token base ms", Align::kRight},
               {"variant ms", Align::kRight},
               {"ratio", Align::kRight},
               {"read share", Align::kRight},
               {"pairs", Align::kRight}});
  for (const tools::PromptLine& line : report.prompts) {
    table.AddRow({std::to_string(line.n_tokens), FormatFixed(line.base_ttft_ms, 1),
                  FormatFixed(line.variant_ttft_ms, 1), FormatFixed(line.ttft_ratio.value, 3),
                  FormatFixed(line.base_token_ms, 2), FormatFixed(line.variant_token_ms, 2),
                  FormatFixed(line.token_ratio.value, 3),
                  line.base_bandwidth_share ? FormatPercent(line.base_bandwidth_share->value) : "-",
                  std::to_string(line.n_pairs)});
  }
  std::cout << table.Render() << "\n";
}

void PrintBatches(const tools::ModelBenchReport& report) {
  std::cout << "Decode, tokens per second of the batch and time over the base's\n";
  Table table({{"batch", Align::kRight},
               {"base", Align::kRight},
               {"one variant", Align::kRight},
               {"ratio", Align::kRight},
               {"all distinct", Align::kRight},
               {"ratio", Align::kRight},
               {"to bound", Align::kRight},
               {"read share", Align::kRight}});
  const auto speed = [](size_t n, double step_ms) { return FormatFixed(static_cast<double>(n) * 1e3 / step_ms, 1); };
  for (const tools::BatchLine& line : report.batches) {
    const bool distinct = line.distinct_step_ms.has_value();
    table.AddRow({std::to_string(line.n_rows), speed(line.n_rows, line.base_step_ms),
                  speed(line.n_rows, line.one_step_ms), FormatFixed(line.one_ratio.value, 3),
                  distinct ? speed(line.n_rows, *line.distinct_step_ms) : "-",
                  distinct ? FormatFixed(line.distinct_ratio->value, 3) : "-",
                  distinct ? FormatFixed(line.distinct_bound_ratio->value, 3) : "-",
                  FormatPercent((distinct ? *line.distinct_bandwidth_share : line.base_bandwidth_share).value)});
  }
  std::cout << table.Render() << "\n";
}

void PrintRest(const tools::ModelBenchReport& report, double seconds) {
  std::cout << "memory     base " << FormatBytes(report.base_bytes) << " + " << report.n_variants << " variants "
            << FormatBytes(report.variant_bytes) << " (separate copies: " << FormatBytes(report.copies_bytes)
            << "), KV cache " << FormatBytes(report.kv_bytes) << ", resident " << FormatBytes(report.rss_bytes)
            << ", of which pages of files " << FormatBytes(report.rss_file_bytes) << "\n";
  for (const tools::ModelPromise& promise : tools::Promises(report)) {
    std::cout << (promise.holds() ? "holds      " : "MISSED     ") << promise.name << ": "
              << FormatFixed(promise.ratio.value, 3) << " (" << FormatFixed(promise.ratio.bounds.low, 3) << " .. "
              << FormatFixed(promise.ratio.bounds.high, 3) << ")" << (promise.higher_is_better ? " >= " : " <= ")
              << FormatFixed(promise.target, 2) << "\n";
  }
  std::cout << "measured in " << FormatDuration(seconds) << ", limits drifted by " << FormatPercent(report.drift)
            << "\n";
}

void Print(const tools::ModelBenchReport& report, size_t prompt_tokens, double seconds) {
  std::cout << report.shape << ", " << report.n_threads << " threads, vector target " << report.vector_target
            << ", KV cache " << report.kv_dtype << ", prompts in " << report.prefill_dtype << "; this machine reads "
            << FormatFixed(report.before.read_bytes_per_second * 1e-9, 1) << " GB/s and does "
            << FormatFixed(report.before.flops_per_second * 1e-9, 0) << " GFLOP/s\n\n";
  PrintVariants(report, prompt_tokens);
  PrintPrompts(report);
  PrintBatches(report);
  PrintRest(report, seconds);
}

Result<tools::ModelBenchReport> Measure(const Arguments& arguments, tools::ModelBenchOptions options) {
  DF_ASSIGN_OR_RETURN(const tools::TargetTable targets, tools::ParseTargets(tools::BuiltInTargetsText()));
  options.max_drift = targets.max_drift;
  options.on_progress = [](const std::string& what) { std::cerr << "measuring " << what << "\n"; };
  DF_ASSIGN_OR_RETURN(auto base, MakeBase(arguments));
  return tools::RunModelBench(arguments.shape, std::move(base), options);
}

void PrintJson(const Arguments& arguments, const tools::ModelBenchReport& report, size_t prompt_tokens,
               double seconds) {
  Json json = ToJson(report);
  json["table_prompt_tokens"] = prompt_tokens;
  if (const auto config = tools::SyntheticConfig(arguments.shape); config.ok()) json["config"] = *config;
  json["seconds"] = seconds;
  std::cout << DumpJson(json, 1) << "\n";
}

// The exit code.
Result<int> Run(const Arguments& arguments) {
  tools::ModelBenchOptions options = arguments.options;
  DF_RETURN_IF_ERROR(CheckKernelOptions(options.kernels));
  if (arguments.quick) options = tools::QuickModelBench(std::move(options));
  std::optional<AtomicFile> plot;  // opened before minutes of measuring
  if (!arguments.plot.empty()) {
    DF_ASSIGN_OR_RETURN(plot, AtomicFile::Create(arguments.plot));
  }
  const SteadyClock clock;
  const int64_t start_us = clock.NowUs();
  DF_ASSIGN_OR_RETURN(const tools::ModelBenchReport report, Measure(arguments, options));
  const double seconds = static_cast<double>(clock.NowUs() - start_us) * 1e-6;
  if (plot) {
    const std::string svg = tools::RenderSvg(tools::Plots(report));
    DF_RETURN_IF_ERROR(plot->Write(AsBytes(svg)));
    DF_RETURN_IF_ERROR(plot->Commit());
  }
  if (arguments.json) {
    PrintJson(arguments, report, options.table_prompt_tokens, seconds);
  } else {
    Print(report, options.table_prompt_tokens, seconds);
  }
  return ExitOfRun("bench model", report.is_void);
}

}  // namespace

void AddBenchModel(const Command& bench) {
  const Command command = bench.Sub("model", "A whole model: what variants cost in time and memory");
  auto arguments = std::make_shared<Arguments>();
  tools::ModelBenchOptions& options = arguments->options;
  command.Option("--shape", arguments->shape, "One of " + KnownShapes() + ", or a model directory or hub id")
      .Value("SHAPE|MODEL [qwen3-0.6b]");
  command.Switch("--synthetic", arguments->synthetic, "Made-up weights for a model directory too: reads its config");
  command.Option("--variants", options.n_variants, "Made-up 1-bit variants [14]").Range(1, 256).Value("N");
  command.Option("--threads", options.n_threads, "Threads [all usable]").Range(1, 1024).Value("N");
  AddKernelOptions(command, options.kernels);
  AddWeightsOption(command, arguments->weights);
  command.Option("--prompt-len", options.prompt_tokens, "Prompt lengths in tokens [16,64,256,512,1024,2048]")
      .SplitAtCommas()
      .Value("N,N,...");
  command.Option("--batch", options.batches, "Sequences that decode together [1,2,4,8,14,16]")
      .SplitAtCommas()
      .Value("N,N,...");
  command.Switch("--quick", arguments->quick, "A few short measurements: an impression within 30 s");
  command.Option("--plot", arguments->plot, "Write two plots as SVG").Value("FILE.svg");
  command.Switch("--json", arguments->json, "Print the report as JSON");
  command.Footer(kExamples);
  command.OnRun([arguments] {
    const Result<int> code = Run(*arguments);
    return code.ok() ? *code : Report("bench model", code.status());
  });
}

}  // namespace df::cli
