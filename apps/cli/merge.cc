#include <algorithm>
#include <iostream>
#include <map>
#include <memory>

#include "base/clock.h"
#include "base/json.h"
#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/merge_recipe.h"
#include "cli/merge_variant.h"
#include "cli/progress.h"
#include "cli/table.h"
#include "codec/low_rank.h"
#include "merge/merger.h"
#include "merge/scratch.h"

namespace df::cli {
namespace {

enum class Form { kFull, kDelta, kLora };
constexpr size_t kLoraRank = 64;

struct Arguments {
  RecipeArguments recipe;
  std::string out;
  Form form = Form::kFull;
  std::optional<uint64_t> lora_rank;
  CodeArguments codes;
  CalibrationOptions calibration = {.source = ""};  // not given
  merge::MergerOptions options;
  size_t n_threads = 0;
  bool dry_run = false, json = false;
};

constexpr char kExamples[] =
    "Methods (docs/merging.md): linear, task_arithmetic, slerp, ties, dare_linear, dare_ties as mergekit defines "
    "them;\n"
    "  svd_average, monosoup, opcm. A recipe file may give every parameter by filter or along the layers; `slices` "
    "and\n"
    "  other methods are refused by name. Codes of --as delta: deltafold compress --help.\n"
    "Examples:\n"
    "  deltafold merge recipe.yml ./merged\n"
    "  deltafold merge recipe.yml ./merged --dry-run       # bytes, memory and time\n"
    "  deltafold merge recipe.yml ./merged --resume        # after a kill or Ctrl-C: the same bytes in the end\n"
    "  deltafold merge linear --model A=0.5 --model B=0.5 --out ./merged\n"
    "  deltafold merge svd-average --rank 16 --base B --model step-800 --model step-900 --out ./soup\n"
    "  deltafold merge monosoup --base B --model M --out ./edited\n"
    "  deltafold merge ties --density 0.3 --base B --model M=0.6 --model M2+./lora=0.4 --out ./merged --as delta\n"
    "  deltafold merge task-arithmetic --base B --model ./lora-a --model ./lora-b --out ./both --as lora --lora-rank "
    "32\n"
    "Then: deltafold chat --model ./merged, or deltafold serve --model B --lora-modules both=./both";

size_t ThreadsOf(const Arguments& arguments) { return arguments.n_threads > 0 ? arguments.n_threads : UsableCpus(); }

double NumberAt(const Json& json, const char* key) {
  const Json* const value = JsonMemberOrNull(json, key);
  return value != nullptr && value->is_number() ? value->get<double>() : 0;
}

// How many tensors were merged in which way.
std::string WaysText(const Json& report) {
  std::map<std::string, size_t> ways;
  for (const Json& tensor : report["tensors"]) ++ways[tensor["way"].get<std::string>()];
  std::string text;
  for (const auto& [way, n] : ways) text += (text.empty() ? "" : ", ") + std::to_string(n) + " " + way;
  return text;
}

void PrintReport(const Json& report) {
  const bool has_base = report["norms_of"] == "differences";
  Table table({{"model"}, {has_base ? "norm of its difference" : "norm of its weights", Align::kRight}});
  for (size_t i = 0; i < report["models"].size(); ++i) {
    table.AddRow({report["models"][i].get<std::string>(), FormatFixed(report["task_norms"][i].get<double>(), 4)});
  }
  table.AddRule();
  table.AddRow({"merged", FormatFixed(report["result_norm"].get<double>(), 4)});
  std::cout << table.Render() << "\n" << report["tensors"].size() << " tensors: " << WaysText(report) << "\n";
  if (report.contains("mean_kept_energy")) {
    std::cout << "kept of the spectra: " << FormatPercent(report["mean_kept_energy"].get<double>())
              << " of the squares, on average\n";
  }
  const double added = NumberAt(report, "added_tokens");
  if (added > 0) std::cout << FormatFixed(added, 0) << " tokens beyond the base's\n";
}

void PrintFull(const Json& report, const Arguments& arguments, double seconds) {
  PrintReport(report);
  const double moved = NumberAt(report["bytes"], "read") + NumberAt(report["bytes"], "written");
  std::cout << arguments.out << ": " << FormatBytes(static_cast<uint64_t>(NumberAt(report["bytes"], "written")))
            << " in " << report["shards"] << (report["shards"] == 1 ? " file" : " files") << ", in "
            << FormatDuration(seconds) << " (" << FormatBytes(static_cast<uint64_t>(moved / std::max(seconds, 1e-9)))
            << "/s read and written)\n";
}

void PrintVariant(const VariantReport& report, const Arguments& arguments, double seconds) {
  PrintReport(report.merge);
  std::cout << arguments.out << ": " << (arguments.form == Form::kLora ? "an adapter" : "a delta") << " of "
            << FormatBytes(report.bytes) << ", in " << FormatDuration(seconds) << "\n";
  if (report.full_bytes > 0) {
    std::cout << "mean relative error of the coded differences: " << FormatFixed(report.mean_relative_frobenius, 4)
              << "\n";
  }
}

struct Inputs {
  merge::Recipe recipe;
  merge::MergeSources sources;
};

Result<Inputs> OpenInputs(const Arguments& arguments) {
  Inputs inputs;
  DF_ASSIGN_OR_RETURN(inputs.recipe, ReadRecipe(arguments.recipe));
  Result<merge::MergeSources> sources = merge::OpenSources(inputs.recipe);
  if (!sources.ok()) return FromFiles(sources.status());
  inputs.sources = std::move(*sources);
  return inputs;
}

Status DryRun(const Arguments& arguments) {
  DF_RETURN_IF_ERROR(CheckOutFree(arguments.out, arguments.options.replace));  // as the run would
  DF_ASSIGN_OR_RETURN(const Inputs inputs, OpenInputs(arguments));
  ThreadPool pool(ThreadsOf(arguments));
  DF_ASSIGN_OR_RETURN(const merge::MergeEstimate estimate,
                      merge::EstimateMerge(pool, inputs.recipe, inputs.sources, arguments.options.max_shard_bytes));
  if (arguments.json) {
    const Json json = {{"tensors", estimate.n_tensors},
                       {"shards", estimate.n_shards},
                       {"vocab", estimate.vocab},
                       {"read_bytes", estimate.read_bytes},
                       {"written_bytes", estimate.written_bytes},
                       {"memory_bytes", estimate.memory_bytes},
                       {"seconds", estimate.seconds},
                       {"sample_bytes", estimate.sample_bytes}};
    std::cout << DumpJson(json, 2) << "\n";
    return Status::Ok();
  }
  std::cout << merge::RecipeText(inputs.recipe) << "\n"
            << estimate.n_tensors << " tensors of a vocabulary of " << estimate.vocab << ": "
            << FormatBytes(estimate.read_bytes) << " to read, " << FormatBytes(estimate.written_bytes)
            << " to write in " << estimate.n_shards << (estimate.n_shards == 1 ? " file" : " files") << ", at most "
            << FormatBytes(estimate.memory_bytes) << " of tensors in memory\n"
            << "about " << FormatDuration(estimate.seconds) << " of computing on " << ThreadsOf(arguments)
            << " threads, from a sample of " << FormatBytes(estimate.sample_bytes)
            << "; a disk may take longer to write it\n";
  if (arguments.form != Form::kFull) {
    std::cout << "Coding it as " << (arguments.form == Form::kLora ? "an adapter" : "a delta")
              << " comes on top (deltafold compress --dry-run); until then it stands in "
              << merge::ScratchOf(arguments.out) << "\n";
  }
  std::cout << "Nothing was written to " << arguments.out << "\n";
  return Status::Ok();
}

// The signal ends the process as soon as it is let through.
void TellOfStop(const Status& status) {
  if (status.code() != StatusCode::kCancelled) return;
  std::cerr << "\ndeltafold merge: " << status.message()
            << "; what is done is kept: go on with --resume, or discard it with --force\n";
}

// What both kinds of output share while they are made.
struct Work {
  const InterruptGuard interrupt = {};
  std::optional<Progress> progress;
  SteadyClock clock = {};
  int64_t start_us = 0;

  template <typename State>
  bool Show(const State& done) {
    progress->Update({done.done_bytes, done.n_bytes, done.done_tensors, done.n_tensors});
    return !interrupt.Interrupted();
  }
  double seconds() const { return static_cast<double>(clock.NowUs() - start_us) * 1e-6; }
};

Result<Json> MergeAsFull(const Arguments& arguments, const Inputs& inputs, Work& work) {
  merge::MergerOptions options = arguments.options;
  options.on_progress = [&](const StreamProgress& done) { return work.Show(done); };
  ThreadPool pool(ThreadsOf(arguments));
  DF_ASSIGN_OR_RETURN(const merge::MergeReport report,
                      merge::MergeModels(pool, inputs.recipe, inputs.sources, arguments.out, options));
  work.progress.reset();
  const Json json = ToJson(report);
  if (!arguments.json) PrintFull(json, arguments, work.seconds());
  return Json{{"out", arguments.out},
              {"as", "full"},
              {"seconds", work.seconds()},
              {"stream_seconds", report.stream_seconds},
              {"merge", json}};
}

// Singular vectors are an adapter's best factors by themselves; a text moves them towards what it happens to ask.
CalibrationOptions CalibrationOf(const Arguments& arguments) {
  CalibrationOptions options = arguments.calibration;
  if (options.source.empty()) options.source = arguments.form == Form::kLora ? kNoSource : kSelfSource;
  return options;
}

Result<Json> MergeAsVariant(const Arguments& arguments, const Inputs& inputs, Work& work) {
  VariantOptions options{.out = arguments.out,
                         .as_lora = arguments.form == Form::kLora,
                         .lora_rank = arguments.lora_rank.value_or(kLoraRank),
                         .codes = arguments.codes,
                         .calibration = CalibrationOf(arguments),
                         .n_threads = ThreadsOf(arguments),
                         .merger = arguments.options};
  options.merger.on_progress = [&](const StreamProgress& done) { return work.Show(done); };
  options.on_compress = [&](const CompressOptions::Progress& done) { return work.Show(done); };
  options.go_on = [&] { return !work.interrupt.Interrupted(); };
  DF_ASSIGN_OR_RETURN(const VariantReport report, MergeToVariant(inputs.recipe, inputs.sources, options));
  work.progress.reset();
  if (!arguments.json) PrintVariant(report, arguments, work.seconds());
  Json json = {{"out", arguments.out},
               {"as", options.as_lora ? "lora" : "delta"},
               {"seconds", work.seconds()},
               {"merge", report.merge},
               {"delta", report.compress}};
  if (options.as_lora) json["adapter"] = report.adapter;
  return json;
}

Status Merge(const Arguments& arguments) {
  DF_ASSIGN_OR_RETURN(const Inputs inputs, OpenInputs(arguments));
  Work work;
  work.progress.emplace("merge");
  work.start_us = work.clock.NowUs();
  const Result<Json> report =
      arguments.form == Form::kFull ? MergeAsFull(arguments, inputs, work) : MergeAsVariant(arguments, inputs, work);
  work.progress.reset();
  TellOfStop(report.status());
  if (!report.ok()) return FromFiles(report.status());
  if (arguments.json) std::cout << DumpJson(*report, 2) << "\n";
  return Status::Ok();
}

int Run(const Arguments& arguments) {
  if (arguments.form != Form::kDelta && arguments.codes.IsGiven()) {
    return Report("merge", InvalidArgument("--code, --embeddings, --head, --bytes and --max-error are for --as delta"));
  }
  const CalibrationOptions& calibration = arguments.calibration;
  if (arguments.form == Form::kFull && (!calibration.source.empty() || calibration.seed != 0 ||
                                        calibration.max_bytes != CalibrationOptions().max_bytes)) {
    return Report("merge",
                  InvalidArgument("--calibrate, --calibrate-memory and --seed are for --as delta and --as lora"));
  }
  if (CompressOptions codes; arguments.form == Form::kDelta) {
    if (const Status status = ReadCodes(arguments.codes, codes); !status.ok()) return Report("merge", status);
  }
  if (arguments.form != Form::kLora && arguments.lora_rank) {
    return Report("merge", InvalidArgument("--lora-rank is for --as lora"));
  }
  if (arguments.out.empty()) {  // after what the recipe's own error would say
    const Status recipe = ReadRecipe(arguments.recipe).status();
    return Report("merge", recipe.ok() ? InvalidArgument("--out is missing") : recipe);
  }
  return Report("merge", arguments.dry_run ? DryRun(arguments) : Merge(arguments));
}

}  // namespace

void AddMerge(const Command& app) {
  const Command command = app.Sub("merge", "Merge fine-tunes of one base to a checkpoint, a delta or an adapter");
  auto arguments = std::make_shared<Arguments>();
  merge::MergerOptions& options = arguments->options;
  AddRecipeOptions(command, arguments->recipe);
  command.Option("out,--out,-o", arguments->out, "Directory to write; appears whole or not at all")
      .NotEmpty()
      .Value("DIR");
  command
      .Choice("--as", {{"full", Form::kFull}, {"delta", Form::kDelta}, {"lora", Form::kLora}}, arguments->form,
              "What to write: full checkpoint, delta or adapter of the base [full]")
      .Value("FORM");
  command.Option("--lora-rank", arguments->lora_rank, "--as lora: rank of the factors [64]")
      .Range(1, kMaxCodedRank)
      .Value("N");
  AddCodeOptions(command, arguments->codes);
  AddCalibrationOptions(command, arguments->calibration, "self; --as lora: none");
  command.Option("--max-shard-bytes", options.max_shard_bytes, "Start a new file beyond [5000000000]")
      .Range(1'000'000, uint64_t{1} << 50)
      .Value("BYTES");
  command.Option("--threads", arguments->n_threads, "Threads [all usable]").Range(1, 1024).Value("N");
  command.Switch("--dry-run", arguments->dry_run, "Say what would be read, written and held, and how long it takes");
  command.Switch("--resume", options.resume, "Go on with what a killed or stopped run at --out left, if any");
  command.Switch("--force", options.replace, "Replace an existing --out, discard what a stopped run left");
  command.Switch("--json", arguments->json,
                 "Print the report as JSON: norms, kept energy, coefficients, a tensor each");
  command.Footer(kExamples);
  command.OnRun([arguments] { return Run(*arguments); });
}

}  // namespace df::cli
