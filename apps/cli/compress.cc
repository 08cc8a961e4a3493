#include <algorithm>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/json.h"
#include "cli/calibration.h"
#include "cli/choices.h"
#include "cli/code_arguments.h"
#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/model_argument.h"
#include "cli/progress.h"
#include "cli/table.h"
#include "codec/compressor.h"
#include "codec/estimate.h"
#include "engine/calibration_text.h"

namespace df::cli {
namespace {

struct Arguments {
  std::string base, model, out;
  CodeArguments codes;
  CompressOptions options;
  CalibrationOptions calibration;
  size_t n_threads = 0;
  bool dry_run = false, choices = false, json = false;
};

constexpr char kExamples[] =
    "Codes (docs/codes.md): scalar, row, column, rank1 (one bit a weight and scales), planes2 to planes8 (so many "
    "bits),\n"
    "  lowrank (the rank is found), lowrank:R, rank1+lowrank:R, int8, rows, raw, exact (nothing, changed rows or all,\n"
    "  whichever is smallest), auto.\n"
    "auto measures every code on every tensor, then takes the smallest whose relative error is within --max-error, or\n"
    "  lowers the error where a byte saves most until --bytes are used. Neither a code nor a bound given: rank1 for "
    "the\n"
    "  layers' matrices, and for embedding and head what --bytes 1.35bpw then leaves.\n"
    "Signs and low ranks are fitted to what the fine-tune computes on a text, its own by default: much closer for the\n"
    "  same bytes. --calibrate none takes them from the differences alone, in a fraction of the time.\n"
    "Examples:\n"
    "  deltafold compress --base Qwen/Qwen3-0.6B --model ./my-finetune --out ./my-delta\n"
    "  deltafold compress --base base --model finetune --out delta --code planes2\n"
    "  deltafold compress base finetune delta --code auto --bytes 12% --calibrate prompts.jsonl\n"
    "  deltafold compress base finetune delta --dry-run      # bytes and time of every code\n"
    "  deltafold compress base finetune delta --resume       # after a kill or Ctrl-C: the same bytes in the end\n"
    "Then: deltafold verify ./my-delta --base Qwen/Qwen3-0.6B --model ./my-finetune";

// What the weights of one kind and code have together.
struct Group {
  size_t n = 0;
  uint64_t bytes = 0, full_bytes = 0;
  double error = 0;
  double output_error = 0;
  size_t n_outputs = 0;  // that have one
};

// "sign rank-1 + rank 8" of all ranks and "rows 12" of all counts are one line each.
std::string WithoutNumbers(const std::string& code) {
  std::string text;
  for (size_t i = 0; i < code.size(); ++i) {
    const bool starts_count = code[i] == ' ' && i + 1 < code.size() && code[i + 1] >= '0' && code[i + 1] <= '9';
    if (!starts_count) {
      text += code[i];
      continue;
    }
    while (i + 1 < code.size() && code[i + 1] >= '0' && code[i + 1] <= '9') ++i;
  }
  return text;
}

// The lines of all weights of one kind, a code each.
void AddKind(Table& table, const std::string& title, SlotKind kind, const CompressReport& report) {
  std::map<std::string, Group> groups;
  for (const WeightReport& weight : report.weights) {
    if (weight.kind != kind) continue;
    Group& group = groups[WithoutNumbers(weight.code)];
    ++group.n;
    group.bytes += weight.bytes;
    group.full_bytes += weight.full_bytes;
    group.error += weight.quality.relative_frobenius;
    group.output_error += weight.output_error.value_or(0);
    group.n_outputs += weight.output_error ? 1 : 0;
  }
  bool first = true;
  for (const auto& [code, group] : groups) {
    const auto full = static_cast<double>(std::max<uint64_t>(group.full_bytes, 1));
    table.AddRow({first ? title : "", std::to_string(group.n), code, FormatBytes(group.full_bytes),
                  FormatBytes(group.bytes), FormatPercent(static_cast<double>(group.bytes) / full),
                  group.error == 0 ? "exact" : FormatFixed(group.error / static_cast<double>(group.n), 4),
                  group.error == 0 || group.n_outputs == 0
                      ? ""
                      : FormatFixed(group.output_error / static_cast<double>(group.n_outputs), 4)});
    first = false;
  }
}

void PrintSummary(const CompressReport& report, const Arguments& arguments, double seconds) {
  const CompressOptions& options = arguments.options;
  Table table({{"weights"},
               {"count", Align::kRight},
               {"code"},
               {"full", Align::kRight},
               {"delta", Align::kRight},
               {"share", Align::kRight},
               {"mean error", Align::kRight},
               {report.mean_output_error ? "of outputs" : "", Align::kRight}});
  AddKind(table, "embedding", SlotKind::kEmbedding, report);
  AddKind(table, "matrices", SlotKind::kMatrix, report);
  AddKind(table, "norms, biases", SlotKind::kVector, report);
  AddKind(table, "head", SlotKind::kHead, report);
  const auto full = static_cast<double>(std::max<uint64_t>(report.full_bytes, 1));
  table.AddRule();
  table.AddRow({"all", std::to_string(report.weights.size()), std::to_string(report.n_unchanged) + " unchanged",
                FormatBytes(report.full_bytes), FormatBytes(report.delta_bytes),
                FormatPercent(static_cast<double>(report.delta_bytes) / full), "", ""});
  std::cout << table.Render() << "\n" << arguments.out << ": ";
  if (report.delta_bytes == 0) {
    std::cout << "no weight differs from the base\n";
    return;
  }
  std::cout << FormatBytes(report.delta_bytes) << ", " << FormatRatio(full / static_cast<double>(report.delta_bytes))
            << " smaller than the fine-tune, in " << FormatDuration(seconds) << " ("
            << FormatBytes(static_cast<uint64_t>(full / std::max(seconds, 1e-9))) << "/s of fine-tune)\n"
            << "error = |D - D^| / |D| of the differences to the base\n";
  if (report.calibration_tokens == 0) return;
  std::cout << "of outputs: |(D - D^) x| / |D x|, fitted on " << report.calibration_tokens
            << " tokens, source: " << options.calibration->source << "\n";
}

void PrintJson(const CompressReport& report, const Arguments& arguments, double seconds) {
  Json json = {{"out", arguments.out},
               {"base_fingerprint", report.base_fingerprint},
               {"files", report.files},
               {"seconds", seconds}};
  json.update(ToJson(report, arguments.options));
  std::cout << DumpJson(json, 2) << "\n";
}

// Both models, opened; their names go into the options.
struct Inputs {
  std::shared_ptr<const Checkpoint> base, fine_tune;
};

Result<Inputs> OpenInputs(const Arguments& arguments, CompressOptions& options) {
  DF_ASSIGN_OR_RETURN(const ModelArgument base, ResolveModel(arguments.base));
  DF_ASSIGN_OR_RETURN(const ModelArgument model, ResolveModel(arguments.model));
  options.base_name = base.name;
  options.model_name = model.name;
  DF_RETURN_IF_ERROR(CheckOutFree(arguments.out, options.replace || arguments.dry_run));
  Inputs inputs;
  DF_ASSIGN_OR_RETURN(inputs.base, Checkpoint::Open(base.directory));
  DF_ASSIGN_OR_RETURN(inputs.fine_tune, Checkpoint::Open(model.directory));
  return inputs;
}

size_t ThreadsOf(const Arguments& arguments) { return arguments.n_threads > 0 ? arguments.n_threads : UsableCpus(); }

// What was decided on the way is in `arguments.options` then.
Result<CompressReport> CompressWithProgress(Arguments& arguments) {
  CompressOptions& options = arguments.options;
  DF_ASSIGN_OR_RETURN(const Inputs inputs, OpenInputs(arguments, options));
  const InterruptGuard interrupt;
  Progress progress("compress");
  options.on_progress = [&](const CompressOptions::Progress& done) {
    progress.Update({done.done_bytes, done.n_bytes, done.done_tensors, done.n_tensors});
    return !interrupt.Interrupted();
  };
  KernelContext context(ThreadsOf(arguments));
  if (!options.matrices || TakesInputs(*options.matrices)) {
    DF_ASSIGN_OR_RETURN(options.calibration,
                        MakeCalibration(arguments.calibration, {inputs.base->directory(), inputs.fine_tune}, context,
                                        [&] { return !interrupt.Interrupted(); }));
    FitToCalibration(arguments.codes, options);
  }
  Result<CompressReport> report = Compress(context.pool, *inputs.base, *inputs.fine_tune, arguments.out, options);
  if (report.status().code() == StatusCode::kCancelled) {
    // The signal ends the process as soon as it is let through.
    std::cerr << "\ndeltafold compress: " << report.status().message()
              << "; what is done is kept: go on with --resume, or discard it with --force\n";
  }
  return report;
}

std::string FormatEstimate(const BytesEstimate& bytes) {
  if (bytes.IsExact()) return FormatBytes(bytes.likely);
  if (bytes.likely == bytes.at_most) return "at most " + FormatBytes(bytes.at_most);
  return FormatBytes(bytes.likely) + " to " + FormatBytes(bytes.at_most);
}

void PrintEstimate(const CompressEstimate& estimate, const Arguments& arguments) {
  Table table({{"code"},
               {"delta", Align::kRight},
               {"share", Align::kRight},
               {"bits a weight", Align::kRight},
               {"time", Align::kRight}});
  const auto add = [&](const CodeEstimate& code) {
    const auto bytes = static_cast<double>(code.bytes.likely);
    table.AddRow({code.code, FormatEstimate(code.bytes),
                  FormatPercent(bytes / static_cast<double>(std::max<uint64_t>(estimate.full_bytes, 1))),
                  FormatFixed(8 * bytes / static_cast<double>(std::max<uint64_t>(estimate.n_elements, 1)), 3),
                  FormatDuration(code.seconds)});
  };
  add(estimate.asked);
  table.AddRule();
  for (const CodeEstimate& code : estimate.others) add(code);
  std::cout << table.Render() << "\n"
            << estimate.n_weights << " weights, " << estimate.n_unchanged << " unchanged, "
            << FormatBytes(estimate.full_bytes) << "; time from a sample of " << FormatBytes(estimate.sample_bytes)
            << ", " << ThreadsOf(arguments) << " threads\nNothing was written to " << arguments.out << "\n";
}

Json ToJson(const CodeEstimate& code) {
  return {{"code", code.code},
          {"bytes", code.bytes.likely},
          {"at_most_bytes", code.bytes.at_most},
          {"exact", code.bytes.IsExact()},
          {"seconds", code.seconds}};
}

// The most that it will be; a file may hold less.
std::optional<FittingText> FittingTextOf(const CalibrationOptions& options, const ModelConfig& config) {
  if (options.source == "none") return {};
  const CalibrationTextOptions text;
  const size_t n_tokens = std::min(text.n_tokens, config.max_positions) * text.n_sequences;
  const uint64_t n_held = options.max_bytes / 2 / std::max<uint64_t>(StateBytes(config, 1), 1);
  return FittingText{.n_tokens = std::min<size_t>(n_tokens, n_held), .is_own = options.source == kSelfSource};
}

Status DryRun(const Arguments& arguments) {
  CompressOptions options = arguments.options;
  DF_ASSIGN_OR_RETURN(const Inputs inputs, OpenInputs(arguments, options));
  ThreadPool pool(ThreadsOf(arguments));
  const std::optional<FittingText> text = FittingTextOf(arguments.calibration, inputs.fine_tune->config());
  DF_ASSIGN_OR_RETURN(const CompressEstimate estimate,
                      EstimateCompress(pool, *inputs.base, *inputs.fine_tune, options, text));
  if (!arguments.json) {
    PrintEstimate(estimate, arguments);
    return Status::Ok();
  }
  Json json = {{"weights", estimate.n_weights},     {"unchanged", estimate.n_unchanged},
               {"full_bytes", estimate.full_bytes}, {"elements", estimate.n_elements},
               {"asked", ToJson(estimate.asked)},   {"others", Json::array()}};
  for (const CodeEstimate& code : estimate.others) json["others"].push_back(ToJson(code));
  std::cout << DumpJson(json, 2) << "\n";
  return Status::Ok();
}

int Run(Arguments& arguments) {
  if (const Status status = ReadCodes(arguments.codes, arguments.options); !status.ok())
    return Report("compress", status);
  if (arguments.dry_run) return Report("compress", FromFiles(DryRun(arguments)));
  const SteadyClock clock;
  const int64_t start_us = clock.NowUs();
  const Result<CompressReport> report = CompressWithProgress(arguments);
  if (!report.ok()) return Report("compress", FromFiles(report.status()));
  const double seconds = static_cast<double>(clock.NowUs() - start_us) * 1e-6;
  if (arguments.json) {
    PrintJson(*report, arguments, seconds);
    return 0;
  }
  if (arguments.choices) {
    const Result<std::string> choices = RenderChoices(ToJson(*report, arguments.options).at("tensors"));
    if (!choices.ok()) return Report("compress", choices.status());
    std::cout << *choices << "\n";
  }
  PrintSummary(*report, arguments, seconds);
  return 0;
}

}  // namespace

void AddCompress(const Command& app) {
  const Command command = app.Sub("compress", "Compress a fine-tune against its base to a delta directory");
  auto arguments = std::make_shared<Arguments>();
  CompressOptions& options = arguments->options;
  command.Option("base,--base", arguments->base, "Base model: directory, or hub id in the local cache")
      .Required()
      .Value("MODEL");
  command.Option("model,--model,--finetune", arguments->model, "Full fine-tune of that base").Required().Value("MODEL");
  command.Option("out,--out,-o", arguments->out, "Delta directory to write; appears whole or not at all")
      .Required()
      .NotEmpty()
      .Value("DIR");
  AddCodeOptions(command, arguments->codes);
  AddCalibrationOptions(command, arguments->calibration);
  command.Option("--threads", arguments->n_threads, "Threads [all usable]").Range(1, 1024).Value("N");
  command.Switch("--dry-run", arguments->dry_run, "Say what it and other codes would store and how long they take");
  command.Switch("--resume", options.resume, "Go on with what a killed or stopped run at --out left, if any");
  command.Switch("--force", options.replace, "Replace an existing --out, discard what a stopped run left");
  command.Switch("--choices", arguments->choices,
                 "Print what auto chose from, tensor by tensor; --json has it too, and inspect --choices");
  command.Switch("--json", arguments->json, "Print the report as JSON");
  command.Footer(kExamples);
  command.OnRun([arguments] { return Run(*arguments); });
}

}  // namespace df::cli
