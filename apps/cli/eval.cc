#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>

#include "base/atomic_file.h"
#include "base/clock.h"
#include "base/json.h"
#include "cli/command.h"
#include "cli/eval_family.h"
#include "cli/eval_tables.h"
#include "cli/interrupt.h"
#include "cli/kernel_arguments.h"
#include "cli/model_argument.h"
#include "cli/progress.h"
#include "eval/card.h"
#include "eval/report.h"
#include "format/variant_kind.h"
#include "kernels/prefill_dtype.h"

namespace df::cli {
namespace {

struct Arguments {
  std::string base, text, plot, replies, report;
  std::vector<std::string> families, variants, tasks;
  std::string kv_cache_dtype = "f32";
  eval::EvalOptions options;
  WeightMemory weights = WeightMemory::kRam;
  bool no_base = false, teacher_forced = false, card = false, json = false;
};

constexpr char kExamples[] =
    "A variant's full fine-tune is what its codes are measured against. Beside each other are the base, the full "
    "model\n"
    "and every delta or adapter given for a name; docs/evaluating.md has files, figures and JSON keys.\n"
    "Examples:\n"
    "  deltafold eval --base Qwen/Qwen3-0.6B --variant mine=ORG/FINETUNE --variant mine=./my-delta --text "
    "held-out.txt\n"
    "  deltafold eval --base base --variant math=./math --variant math:scalar=./math-scalar --variant "
    "math:auto=./math-auto \\\n"
    "    --task math=math.jsonl --items 200 --plot math.svg\n"
    "  deltafold eval --base base --variant math=FINETUNE --variant math=./math --task math.jsonl --card   # into "
    "./math/README.md\n"
    "  deltafold eval --family demo/family.json --text demo/eval/text.txt --json";

Result<EvalFamily> ReadFamily(const Arguments& arguments) {
  EvalFamily family{.base = arguments.base, .subjects = {}};
  for (const std::string& file : arguments.families) DF_RETURN_IF_ERROR(FromFiles(AddFamilyFile(file, family)));
  for (const std::string& variant : arguments.variants) DF_RETURN_IF_ERROR(AddVariant(variant, family));
  for (const std::string& task : arguments.tasks) DF_RETURN_IF_ERROR(AddTask(task, family));
  if (family.base.empty()) return InvalidArgument("give --base, or a family file that names one");
  if (!family.subjects.empty()) return family;
  // The base alone.
  DF_ASSIGN_OR_RETURN(const ModelArgument base, ResolveModel(family.base));
  family.subjects.push_back({.name = base.name, .full_directory = {}, .codes = {}, .task_file = {}});
  for (const std::string& task : arguments.tasks) DF_RETURN_IF_ERROR(AddTask(task, family));
  return family;
}

Status CheckMeasured(const EvalFamily& family, const eval::EvalOptions& options) {
  if (!options.text.empty()) return Status::Ok();
  for (const eval::Subject& subject : family.subjects) {
    if (subject.task_file.empty()) {
      return InvalidArgument("nothing to measure " + subject.name + " on: give --text FILE or --task FILE");
    }
  }
  return Status::Ok();
}

// What is written at the end could be: asked before minutes of measuring.
Status CheckCards(const EvalFamily& family) {
  for (const eval::Subject& subject : family.subjects) {
    for (const eval::CodedVariant& coded : subject.codes) {
      DF_ASSIGN_OR_RETURN(const DirectoryKind kind, KindOfDirectory(coded.directory));
      if (kind == DirectoryKind::kDelta) DF_RETURN_IF_ERROR(eval::CheckCardOf(coded.directory));
    }
  }
  return Status::Ok();
}

// A line an answer: {"variant", "code", "question", "reply", "right"}.
Status WriteReplies(AtomicFile& file, const std::vector<eval::EvalResult>& results) {
  for (const eval::EvalResult& result : results) {
    for (size_t i = 0; i < result.replies.size(); ++i) {
      const Json line = {{"variant", result.variant},
                         {"code", result.code},
                         {"question", i + 1},
                         {"reply", result.replies[i]},
                         {"right", result.answers.correct[i].sum > 0}};
      DF_RETURN_IF_ERROR(file.Write(AsBytes(DumpJson(line) + "\n")));
    }
  }
  return file.Commit();
}

Result<std::vector<eval::EvalResult>> Measure(const EvalFamily& family, const Arguments& arguments) {
  const InterruptGuard interrupt;
  Progress progress("eval");
  eval::EvalOptions options = arguments.options;
  size_t subject_number = 0;
  options.on_progress = [&](const std::string& what, uint64_t done, uint64_t total) {
    progress.Update(std::to_string(subject_number) + "/" + std::to_string(family.subjects.size()) + " " + what, done,
                    total);
    return !interrupt.Interrupted();
  };
  KernelContext context(options.n_threads == 0 ? UsableCpus() : options.n_threads);
  DF_ASSIGN_OR_RETURN(const ModelArgument model, ResolveModel(family.base));
  DF_ASSIGN_OR_RETURN(const LoadedBase base,
                      FromFiles(LoadBaseVariant(context, model.name, model.directory, {.memory = arguments.weights})));
  std::vector<eval::EvalResult> results;
  for (const eval::Subject& subject : family.subjects) {
    ++subject_number;
    DF_ASSIGN_OR_RETURN(std::vector<eval::EvalResult> of_subject,
                        FromFiles(eval::EvaluateSubject(base, subject, options)));
    std::move(of_subject.begin(), of_subject.end(), std::back_inserter(results));
  }
  return results;
}

Result<std::optional<AtomicFile>> Open(const std::string& path) {
  std::optional<AtomicFile> file;
  if (!path.empty()) {
    DF_ASSIGN_OR_RETURN(file, AtomicFile::Create(path));
  }
  return file;
}

Json ParametersOf(const Arguments& arguments, const EvalFamily& family) {
  const eval::EvalOptions& options = arguments.options;
  return {{"base", family.base},
          {"text", arguments.text.empty() ? Json(nullptr) : Json(arguments.text)},
          {"window_tokens", options.windows.window_tokens},
          {"text_tokens", options.windows.max_tokens},
          {"items", options.n_items},
          {"teacher_forced", !options.generate},
          {"prefill_dtype", kernels::PrefillDtypeName(options.kernels.prefill_dtype)},
          {"seed", options.bootstrap.seed},
          {"resamples", options.bootstrap.n_resamples}};
}

// What is written at the end is opened before minutes of measuring.
struct Outputs {
  std::optional<AtomicFile> plot, replies, report;
};

Result<Outputs> OpenOutputs(const Arguments& arguments) {
  Outputs outputs;
  DF_ASSIGN_OR_RETURN(outputs.plot, Open(arguments.plot));
  DF_ASSIGN_OR_RETURN(outputs.replies, Open(arguments.replies));
  DF_ASSIGN_OR_RETURN(outputs.report, Open(arguments.report));
  return outputs;
}

Status WriteText(AtomicFile& file, const std::string& text) {
  DF_RETURN_IF_ERROR(file.Write(AsBytes(text)));
  return file.Commit();
}

eval::CardFacts CardFactsOf(const Arguments& arguments) {
  return {.text = std::filesystem::path(arguments.text).filename(), .program = "deltafold " DELTAFOLD_VERSION};
}

Status Run(Arguments& arguments) {
  const SteadyClock clock;
  const int64_t start_us = clock.NowUs();
  eval::EvalOptions& options = arguments.options;
  DF_RETURN_IF_ERROR(CheckKernelOptions(options.kernels));
  options.with_base = !arguments.no_base;
  options.generate = !arguments.teacher_forced;
  options.kv_dtype = arguments.kv_cache_dtype == "bf16" ? DType::kBf16 : DType::kF32;
  DF_ASSIGN_OR_RETURN(Outputs outputs, OpenOutputs(arguments));
  if (!arguments.text.empty()) {
    DF_ASSIGN_OR_RETURN(options.text, FromFiles(ReadFileBounded(arguments.text, eval::kMaxTaskBytes)));
    if (options.text.empty()) return InvalidArgument("--text " + arguments.text + ": the file is empty");
  }
  DF_ASSIGN_OR_RETURN(const EvalFamily family, ReadFamily(arguments));
  DF_RETURN_IF_ERROR(CheckMeasured(family, options));
  if (arguments.card) DF_RETURN_IF_ERROR(FromFiles(CheckCards(family)));
  DF_ASSIGN_OR_RETURN(const std::vector<eval::EvalResult> results, Measure(family, arguments));
  const eval::Report report = eval::MakeReport(results, options.bootstrap);
  Json json = {{"parameters", ParametersOf(arguments, family)}};
  json.update(ToJson(report));
  json["seconds"] = static_cast<double>(clock.NowUs() - start_us) * 1e-6;
  const std::string text = DumpJson(json, 1) + "\n";
  if (outputs.replies) DF_RETURN_IF_ERROR(WriteReplies(*outputs.replies, results));
  if (outputs.plot) DF_RETURN_IF_ERROR(WriteText(*outputs.plot, tools::RenderSvg(PlotsOf(report))));
  if (outputs.report) DF_RETURN_IF_ERROR(WriteText(*outputs.report, text));
  if (arguments.card) DF_RETURN_IF_ERROR(eval::WriteCards(report, CardFactsOf(arguments)));
  std::cout << (arguments.json ? text : RenderTables(report));
  return Status::Ok();
}

void AddWhatIsMeasured(const Command& command, Arguments& arguments) {
  command.Option("base,--base", arguments.base, "Base model: directory, or hub id in the local cache").Value("MODEL");
  command
      .Option("--variant", arguments.variants,
              "A full fine-tune, delta or adapter of NAME; repeatable. CODE is what the table calls a delta\n"
              "[as its delta_config.json says]")
      .Value("NAME[:CODE]=DIR")
      .OneValueEach();
  command.Option("--family", arguments.families, "A file that lists base, variants, their codes and tasks; repeatable")
      .Value("FILE.json")
      .OneValueEach();
  command
      .Option("--task", arguments.tasks,
              "Questions, a JSON object a line: {\"messages\": [...], \"answer\": \"...\"}; for NAME, or for all\n"
              "variants that have none; repeatable")
      .Value("[NAME=]FILE.jsonl")
      .OneValueEach();
  command.Option("--items", arguments.options.n_items, "Questions of a task [all]").Value("N");
  command.Option("--text", arguments.text, "Text for perplexity, KL and top tokens").Value("FILE");
  command.Option("--text-tokens", arguments.options.windows.max_tokens, "Of the text, from its beginning [16384]")
      .Range(2, size_t{1} << 24)
      .Value("N");
  command.Option("--window", arguments.options.windows.window_tokens, "Tokens of a window of text [512]")
      .Range(2, size_t{1} << 20)
      .Value("N");
}

}  // namespace

void AddEval(const Command& app) {
  const Command command = app.Sub("eval", "What variants keep of their fine-tunes: answers, perplexity, divergence");
  auto arguments = std::make_shared<Arguments>();
  eval::EvalOptions& options = arguments->options;
  AddWhatIsMeasured(command, *arguments);
  command.Switch("--no-base", arguments->no_base, "Do not measure the base");
  command.Switch("--teacher-forced", arguments->teacher_forced,
                 "Generate nothing: an answer is right when each of its tokens is the most probable one");
  command.Option("--max-tokens", options.max_tokens, "Of an answer [twice the reference's and 16]").Value("N");
  command.Option("--seed", options.bootstrap.seed, "Of the resamples behind the intervals [1]").Value("N");
  command.Option("--resamples", options.bootstrap.n_resamples, "How many [2000]").Range(1, 1000000).Value("N");
  command.Option("--threads", options.n_threads, "Threads [all usable]").Range(1, 1024).Value("N");
  command
      .Choice<SignKernel>("--sign-kernel",
                          {{"auto", SignKernel::kAuto}, {"exact", SignKernel::kExact}, {"lut", SignKernel::kLookup}},
                          options.kernels.sign_kernel, "Signs of generated tokens: exact, lut or auto [exact]")
      .Value("KIND");
  AddPrefillDtypeOption(command, options.kernels).Value("DTYPE");
  command.Option("--kv-cache-dtype", arguments->kv_cache_dtype, "Of generated tokens: f32 or bf16 [f32]")
      .OneOf({"f32", "bf16"})
      .Value("DTYPE");
  AddWeightsOption(command, arguments->weights);
  command.Option("--replies", arguments->replies, "Write every answer, a JSON object a line").Value("FILE.jsonl");
  command.Option("--plot", arguments->plot, "Write loss and KL against bits a weight as SVG").Value("FILE.svg");
  command.Option("--report", arguments->report, "Write the JSON there and print the tables")
      .NotEmpty()
      .Value("FILE.json");
  command.Switch("--card", arguments->card, "Write what was measured into the model card (README.md) of each delta");
  command.Switch("--json", arguments->json, "Print as JSON");
  command.Footer(kExamples);
  command.OnRun([arguments] { return Report("eval", Run(*arguments)); });
}

}  // namespace df::cli
