#include "tools/soup.h"

#include <iostream>
#include <map>
#include <memory>
#include <optional>

#include "base/atomic_file.h"
#include "base/json.h"
#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/progress.h"
#include "cli/table.h"

namespace df::cli {
namespace {

struct Arguments {
  tools::SoupOptions soup;
  tools::WatchOptions watch;
  std::vector<std::string> settings;
  std::optional<uint64_t> rank;
  std::optional<double> energy;
  std::string better, by = "exact-match", plot, dtype = "base";
  bool json = false;
};

constexpr double kMostSeconds = 1e7;

constexpr char kExamples[] =
    "Each checkpoint that appears in --watch is merged with the best so far; the checkpoint and the merged one are\n"
    "measured, the best of the three is OUT/best. OUT/soup.jsonl has the curve; the same command goes on where it was\n"
    "stopped. docs/merging.md#soups-during-training has the rules.\n"
    "Examples:\n"
    "  deltafold soup --watch ./run --base Qwen/Qwen3-0.6B --out ./soup --eval-text held-out.txt --plot curve.svg\n"
    "  deltafold soup --watch ./run --base base --out ./soup --method linear --once \\\n"
    "    --eval-questions dev.jsonl --metric cross-entropy\n"
    "  deltafold soup --watch ./run --base base --out ./soup --method ties --set density=0.4 --every 500 \\\n"
    "    --eval-command 'python3 score.py {model}' --better higher\n"
    "  deltafold soup --watch ./run --out ./soup --method linear --metric-file trainer_state.json --metric eval_loss "
    "\\\n"
    "    --eval-command 'python3 eval_loss.py {model}' --better lower";

const std::map<std::string, std::optional<DType>> kDTypes = {
    {"base", std::nullopt}, {"bf16", DType::kBf16}, {"f16", DType::kF16}, {"f32", DType::kF32}};

Result<double> ReadNumber(const std::string& text, const std::string& setting) {
  if (text == "true") return 1.0;
  if (text == "false") return 0.0;
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (!text.empty() && end == text.c_str() + text.size()) return value;
  return InvalidArgument("--set " + setting + ": \"" + text + "\" is no number");
}

// "weight=0.7,0.3"
Status AddSetting(const std::string& setting, tools::SoupMethod& method) {
  const size_t equals = setting.find('=');
  if (equals == std::string::npos || equals == 0) {
    return InvalidArgument("--set " + setting + ": expected NAME=VALUE or NAME=BEST,NEWEST");
  }
  std::vector<double> values;
  for (size_t begin = equals + 1; begin <= setting.size();) {
    const size_t end = std::min(setting.find(',', begin), setting.size());
    DF_ASSIGN_OR_RETURN(const double value, ReadNumber(setting.substr(begin, end - begin), setting));
    values.push_back(value);
    begin = end + 1;
  }
  method.parameters[setting.substr(0, equals)] = std::move(values);
  return Status::Ok();
}

Status Complete(Arguments& arguments) {
  tools::SoupOptions& soup = arguments.soup;
  for (const std::string& setting : arguments.settings) DF_RETURN_IF_ERROR(AddSetting(setting, soup.method));
  if (arguments.rank) soup.method.parameters["rank"] = {static_cast<double>(*arguments.rank)};
  if (arguments.energy) soup.method.parameters["energy"] = {*arguments.energy};
  soup.method.out_dtype = kDTypes.at(arguments.dtype);
  if (!arguments.better.empty()) soup.score.higher_is_better = arguments.better == "higher";
  for (const double seconds :
       {arguments.watch.poll_s, arguments.watch.idle_s, arguments.watch.find.settle_s, soup.score.command_timeout_s}) {
    if (!(seconds >= 0 && seconds <= kMostSeconds)) return InvalidArgument("seconds are 0 to 10000000");
  }
  // --metric is a file's key, or one of the two figures that questions give.
  if (soup.score.metric_file.empty() && !soup.score.metric.empty()) {
    if (soup.score.questions_file.empty()) return InvalidArgument("--metric needs --metric-file or --eval-questions");
    arguments.by = soup.score.metric;
    if (arguments.by != "exact-match" && arguments.by != "cross-entropy") {
      return InvalidArgument("--metric of questions is exact-match or cross-entropy, not \"" + arguments.by + "\"");
    }
  }
  soup.score.by_cross_entropy = arguments.by == "cross-entropy";
  arguments.watch.find.except = soup.out;
  return Status::Ok();
}

std::string ScoreText(const std::optional<double>& score) { return score ? FormatFixed(*score, 4) : "-"; }

std::string_view KeptText(const tools::SoupStep& step) { return step.best ? tools::KeptName(step.kept) : "nothing"; }

std::string LineOf(const tools::TakenCheckpoint& taken) {
  if (taken.skip) return Printable(taken.skip->checkpoint.name + ": skipped: " + taken.skip->reason);
  const tools::SoupStep& step = *taken.step;
  std::string line = step.checkpoint.name + ": newest " + ScoreText(step.newest) + ", merged " +
                     ScoreText(step.merged) + ", best " + ScoreText(step.best);
  line += !step.best                        ? " still missing"
          : step.kept == tools::Kept::kBest ? " as before"
                                            : " (" + std::string(KeptText(step)) + ")";
  return Printable(line + (step.note.empty() ? "" : "; " + step.note));
}

std::string RenderTable(const tools::Soup& soup) {
  Table table({{"step", Align::kRight},
               {"checkpoint", Align::kLeft},
               {"newest", Align::kRight},
               {"merged", Align::kRight},
               {"best", Align::kRight},
               {"kept", Align::kLeft}});
  for (const tools::SoupStep& step : soup.steps()) {
    table.AddRow({std::to_string(step.checkpoint.step), step.checkpoint.name, ScoreText(step.newest),
                  ScoreText(step.merged), ScoreText(step.best), std::string(KeptText(step))});
  }
  return table.Render();
}

Json ToJson(const tools::Soup& soup, const std::vector<tools::WaitingCheckpoint>& waiting) {
  Json json = {{"score", soup.scorer().name()},
               {"better", soup.scorer().higher_is_better() ? "higher" : "lower"},
               {"best", nullptr},
               {"steps", Json::array()},
               {"skipped", Json::array()},
               {"waiting", Json::array()}};
  if (const tools::SoupStep* const best = soup.BestOrNull()) {
    json["best"] = {{"directory", soup.BestDirectory()}, {"score", *best->best}};
  }
  for (const tools::SoupStep& step : soup.steps()) {
    Json& entry = json["steps"].emplace_back(tools::ToJson(step));
    if (!step.best) entry["kept"] = nullptr;
  }
  for (const tools::SoupSkip& skip : soup.skips()) json["skipped"].push_back(tools::ToJson(skip));
  for (const tools::WaitingCheckpoint& left : waiting) {
    json["waiting"].push_back({{"checkpoint", left.name}, {"reason", left.reason}});
  }
  return json;
}

void Print(const tools::Soup& soup, const std::vector<tools::WaitingCheckpoint>& waiting, bool as_json) {
  if (as_json) {
    std::cout << DumpJson(ToJson(soup, waiting), 1) << "\n";
    return;
  }
  for (const tools::WaitingCheckpoint& left : waiting) {
    std::cerr << Printable(left.name + ": left for later: " + left.reason) << "\n";
  }
  std::cout << RenderTable(soup);
  if (soup.BestOrNull() != nullptr) {
    std::cout << "best: " << soup.BestDirectory() << ", " << soup.scorer().name() << " "
              << ScoreText(soup.BestOrNull()->best) << "\n";
  }
}

Status Run(Arguments& arguments) {
  DF_RETURN_IF_ERROR(Complete(arguments));
  const InterruptGuard interrupt;
  std::optional<Progress> progress(std::in_place, "soup");
  arguments.soup.on_progress = [&](const std::string& what, uint64_t done, uint64_t total) {
    progress->Update(what, done, total);
    return !interrupt.Interrupted();
  };
  DF_ASSIGN_OR_RETURN(const auto soup, tools::Soup::Open(arguments.soup));
  arguments.watch.on_taken = [&](const tools::TakenCheckpoint& taken) {
    progress.reset();  // its line is cleared
    if (!arguments.json) std::cerr << LineOf(taken) << std::endl;
    progress.emplace("soup");
    if (arguments.plot.empty()) return Status::Ok();
    const tools::Plot plot = tools::PlotOf(soup->steps(), soup->scorer().name());
    return WriteFileAtomically(arguments.plot, tools::RenderSvg({&plot, 1}));
  };
  const auto waiting = tools::WatchCheckpoints(*soup, arguments.watch);
  progress.reset();
  // Interrupted: what is done is printed, and the signal ends the program after that.
  const bool is_interrupted = waiting.status().code() == StatusCode::kCancelled;
  if (!waiting.ok() && !is_interrupted) return waiting.status();
  Print(*soup, waiting.ok() ? *waiting : std::vector<tools::WaitingCheckpoint>(), arguments.json);
  std::cout.flush();
  if (!arguments.watch.once || is_interrupted || soup->BestOrNull() != nullptr) return Status::Ok();
  if (soup->steps().empty()) {
    return FailedPrecondition("there is no best: " + std::to_string(waiting->size()) + " checkpoints in " +
                              arguments.watch.directory + " are not whole, and there are no others");
  }
  const tools::SoupStep& last = soup->steps().back();
  return FailedPrecondition("nothing was kept, there is no best: no checkpoint has a score that can be used; " +
                            last.checkpoint.name + ": " + last.note);
}

void AddWhatIsMeasured(const Command& command, Arguments& arguments) {
  tools::ScoreOptions& score = arguments.soup.score;
  command
      .Option("--eval-command", score.command,
              "Shell command that measures the checkpoint {model}; the last number it prints is the score")
      .Value("COMMAND");
  command.Option("--eval-timeout", score.command_timeout_s, "Seconds that it may take [3600]").Value("S");
  command.Option("--eval-text", score.text_file, "Measure perplexity of this text").Value("FILE");
  command.Option("--text-tokens", score.text_tokens, "Of the text, from its beginning [16384]")
      .Range(2, size_t{1} << 24)
      .Value("N");
  command.Option("--eval-questions", score.questions_file, "Measure answers to these questions (as eval --task)")
      .Value("FILE.jsonl");
  command.Option("--items", score.n_items, "Of the questions [all]").Value("N");
  command
      .Option("--metric-file", score.metric_file,
              "File in each checkpoint that has its score; merged ones have none: they are measured by one of the\n"
              "above, which must give the same figure, or not merged")
      .Value("NAME.json");
  command
      .Option("--metric", score.metric,
              "Where in it, keys joined by dots; of questions: exact-match or cross-entropy [exact-match]")
      .Value("KEY");
  command.Option("--better", arguments.better, "Which scores are better: lower or higher [known of text and questions]")
      .OneOf({"lower", "higher"})
      .Value("WAY");
}

void AddHowItIsMerged(const Command& command, Arguments& arguments) {
  command
      .Option("--method", arguments.soup.method.name,
              "How the newest is merged with the best: as merge_method of a recipe [svd_average]")
      .Value("NAME");
  command
      .Option("--set", arguments.settings,
              "A parameter of the method, NAME=VALUE, or for best and newest NAME=BEST,NEWEST; repeatable")
      .Value("NAME=VALUE")
      .OneValueEach();
  command.Option("--rank", arguments.rank, "The same as --set rank=N").Value("N");
  command.Option("--energy", arguments.energy, "The same as --set energy=X [0.99 for svd_average without a rank]")
      .Value("X");
  command.Option("--dtype", arguments.dtype, "Stored type of merged weights: base (as there), bf16, f16, f32 [base]")
      .OneOf({"base", "bf16", "f16", "f32"})
      .Value("TYPE");
}

}  // namespace

void AddSoup(const Command& app) {
  const Command command =
      app.Sub("soup", "Average checkpoints during training: keep the best of newest, merged, before");
  auto arguments = std::make_shared<Arguments>();
  command.Option("--watch", arguments->watch.directory, "Directory in which a trainer writes checkpoints")
      .Required()
      .Value("DIR");
  command.Option("--base", arguments->soup.base, "What is trained: directory, or hub id in the local cache")
      .Value("MODEL");
  command.Option("--out,-o", arguments->soup.out, "Directory of the soup; goes on with what is there")
      .Required()
      .NotEmpty()
      .Value("DIR");
  AddHowItIsMerged(command, *arguments);
  AddWhatIsMeasured(command, *arguments);
  command.Option("--every", arguments->watch.every, "Pass over checkpoints fewer steps after the last one taken [0]")
      .Value("N");
  command.Switch("--once", arguments->watch.once, "Take what is there and end");
  command.Option("--idle", arguments->watch.idle_s, "End when nothing came for so many seconds [0: never]").Value("S");
  command.Option("--poll", arguments->watch.poll_s, "Seconds between two looks [5]").Value("S");
  command.Option("--settle", arguments->watch.find.settle_s, "Seconds that a checkpoint must be unchanged [2]")
      .Value("S");
  command.Switch("--keep-all", arguments->soup.keep_all, "Keep also what was the best once");
  command.Option("--plot", arguments->plot, "Write the curve there after every step").Value("FILE.svg");
  command.Option("--threads", arguments->soup.n_threads, "Threads [all usable]").Range(1, 1024).Value("N");
  command.Switch("--json", arguments->json, "Print the report as JSON");
  command.Footer(kExamples);
  command.OnRun([arguments] { return Report("soup", Run(*arguments)); });
}

}  // namespace df::cli
